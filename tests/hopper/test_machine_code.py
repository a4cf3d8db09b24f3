"""What is found in machine code, in some that is made up for it."""

from __future__ import annotations

from tests.hopper.machine_code import Code, Instruction, count_products, find_lost

PRODUCT = Instruction("20", "HGMMA.64x64x16.F32.BF16", "R24, R180, gdesc[UR16], RZ, !UPT")
PACK = Instruction("40", "F2FP.BF16.F32.PACK_AB", "R181, R16, R15")
LOAD = Instruction("10", "LDSM.16.M88.4", "R180, [R5+UR11+0xc000]")
TURNED = Instruction("10", "LDSM.16.MT88.4", "R180, [R5+UR11+0xc000]")
WAIT = Instruction("30", "WARPGROUP.DEPBAR.LE", "gsb0, 0x0")
BACK = Instruction("50", "BRA", "`(.L_x_8)")


def test_a_left_side_that_is_only_written_behind_its_product_is_lost() -> None:
    (told,) = find_lost(Code([LOAD, PRODUCT, WAIT, PACK, BACK], [range(1, 5)]))
    assert told == "HGMMA.64x64x16.F32.BF16 at 0x20: R181 is only written behind it"


def test_one_that_is_read_or_written_again_or_never_overwritten_is_not() -> None:
    for again in (LOAD, TURNED, Instruction("10", "LOP3.LUT", "R181, R5, R6, RZ, 0xfc, !PT")):
        assert find_lost(Code([again, PRODUCT, WAIT, PACK, BACK], [range(5)])) == []
    assert find_lost(Code([LOAD, PRODUCT, WAIT, BACK], [range(1, 4)])) == []
    assert find_lost(Code([LOAD, PRODUCT, WAIT, PACK], [])) == [], "no loop, no second round"
    outer = Code([LOAD, PRODUCT, WAIT, BACK, PACK, BACK], [range(1, 4), range(6)])
    assert find_lost(outer) == [], "what is written outside of its own loop is none of its rounds"


def test_products_and_their_waits_are_counted() -> None:
    assert count_products(Code([PRODUCT, PRODUCT, WAIT], [])) == (2, 1)

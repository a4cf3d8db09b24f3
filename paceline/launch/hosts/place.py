"""This host among those of a run, before any of them was asked: where they meet, by which address and interface it is reached.

plan_hosts(config.launch, origins)
-> HostPlan(count=Count(1, 2), endpoint=Endpoint("10.9.0.1", 29500), address="10.9.0.2", interface="eth0", …); None: one host alone
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.config.sections import Launch
from paceline.errors import RendezvousError
from paceline.launch.environment import WorkerEnvironment
from paceline.launch.hosts.address import (
    address_of,
    describe_interfaces,
    interface_of,
    local_address_towards,
    resolve,
)
from paceline.launch.hosts.endpoint import Count, Endpoint, parse_count, parse_endpoint
from paceline.launch.hosts.facts import collect_facts
from paceline.launch.hosts.message import Hello

_VARIABLES = {"GLOO_SOCKET_IFNAME": "{}", "NCCL_SOCKET_IFNAME": "={}"}
"""NCCL takes a name for the beginning of one unless it is told otherwise"""


@dataclass(frozen=True)
class HostPlan:
    """What one host knows of itself and of the place where it meets the others."""

    count: Count
    endpoint: Endpoint
    host: str
    address: str
    interface: str
    reason: str
    """why this interface"""
    timeout_s: float
    lost_after_s: float

    def greet(self, nproc: int, gpus: int, backend: str, identity: Mapping[str, object], root: str) -> Hello:
        """What this host says of itself; `backend` is the wish for the collectives, which all have to make alike."""
        values = identity.get("values")
        chosen = ("nccl" if nproc <= gpus else "gloo") if backend == "auto" else backend
        return Hello(
            self.host,
            self.address,
            self.interface,
            nproc,
            gpus,
            str(identity["fingerprint"]),
            dict(values) if isinstance(values, Mapping) else {},
            collect_facts(self.address, nproc).to_record(),
            chosen,
            root,
        )

    def assign_interface(self, environment: WorkerEnvironment, inherited: Mapping[str, str]) -> None:
        """The ranks talk over this interface, unless somebody gave another one under the libraries' own names."""
        for name, form in _VARIABLES.items():
            if name not in environment.assigned and name not in inherited:
                environment.assign(name, form.format(self.interface), "launch.interface", self.reason)


def plan_hosts(launch: Launch, origins: Mapping[str, str]) -> HostPlan | None:
    """None where one host trains alone; RendezvousError where there is no way from here to the others."""
    count = parse_count(launch.nnodes, origins["launch.nnodes"])
    if count.most == 1:
        return None
    endpoint = parse_endpoint(launch.rdzv, origins["launch.rdzv"])
    address, interface, reason = _find_way(launch.interface, endpoint, origins)
    return HostPlan(
        count,
        endpoint,
        socket.gethostname(),
        address,
        interface,
        reason,
        launch.rdzv_timeout_s,
        launch.lost_after_s,
    )


def _find_way(wished: str, endpoint: Endpoint, origins: Mapping[str, str]) -> tuple[str, str, str]:
    """(address, interface, why this one)"""
    if wished != "auto":
        return address_of(wished, origins["launch.interface"]), wished, "as requested"
    where = origins["launch.rdzv"]
    target = resolve(endpoint.host, where)[0]
    try:
        address = local_address_towards(target, endpoint.port)
    except OSError as error:
        what = f"there is no way from {socket.gethostname()} to {endpoint} ({error.strerror or error})"
        do = f"check the address and the routes: ip route get {target} (there are: {describe_interfaces()})"
        raise RendezvousError(what, where, do) from error
    interface = interface_of(address)
    if interface is None:
        what = f"no interface of {socket.gethostname()} has the address {address}, which leads to {endpoint}"
        raise RendezvousError(what, where, f"name one with launch.interface (there are: {describe_interfaces()})")
    return address, interface, f"has the address {address}, which leads to {endpoint}"

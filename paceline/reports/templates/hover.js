// Says what the pointer is nearest to; the page is whole without it.
for (const figure of document.querySelectorAll("figure.chart")) {
  const svg = figure.querySelector(":scope > svg"), said = figure.querySelector(".hover"), here = svg.querySelector(".here");
  let points = null;
  const load = () => {
    const data = JSON.parse(figure.querySelector("script").textContent), found = [];
    // Lanes and heat maps say where their marks are; of a curve the drawing itself does.
    if (data.points) return data.points.map(([x, y, text]) => ({ x, y, text, across: 16 }));
    svg.querySelectorAll(".line").forEach((line, number) => {
      const [name, steps, values] = data.curves[number], places = line.getAttribute("d").match(/-?[\d.]+/g) || [];
      steps.forEach((step, i) => found.push({
        x: +places[2 * i], y: +places[2 * i + 1],
        text: `${data.x} ${step.toLocaleString("en")}: ${data.curves.length > 1 ? name + " " : ""}${values[i].toLocaleString("en", { maximumSignificantDigits: 6 })} ${data.unit}`,
      }));
    });
    return found;
  };
  svg.addEventListener("pointermove", (event) => {
    points = points || load();
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let nearest = null, least = Infinity;
    for (const point of points) {
      const far = (point.x - at.x) ** 2 / (point.across || 1) + (point.y - at.y) ** 2 / (point.across ? 1 : 16);
      if (far < least) [nearest, least] = [point, far];
    }
    if (!nearest) return;
    said.textContent = nearest.text;
    said.hidden = false;
    here.setAttribute("cx", nearest.x);
    here.setAttribute("cy", nearest.y);
    here.style.display = "inline";
  });
  svg.addEventListener("pointerleave", () => { said.hidden = true; here.style.display = "none"; });
}

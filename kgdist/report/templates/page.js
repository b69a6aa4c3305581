// Draws the figures of this page in the reader's colours, and again when these change. The library comes packed in the page.
(() => {
  "use strict";
  const charts = [...document.querySelectorAll(".chart")].map((box) => ({
    box, card: box.parentElement, figure: JSON.parse(box.parentElement.querySelector("script").textContent), off: new Set(),
  }));
  const tell = (text) => charts.forEach(({ box }) => { box.querySelector(".empty").textContent = text; });

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    return { line: value("--line"), ink: value("--ink"), soft: value("--soft"), card: value("--card"), rest: value("--rest"),
      ways: Array.from({ length: 7 }, (_, number) => value(`--c${number}`)) };
  }

  function draw({ box, figure, off }) {
    const colour = colours();
    const data = structuredClone(figure.data);
    data.forEach((trace, number) => {
      const own = trace.meta === "rest" ? colour.rest : colour.ways[trace.meta % 7];
      trace.visible = !off.has(number);
      trace.line = { ...trace.line, color: own };
      trace.marker = { ...trace.marker, color: own };
      if (trace.fill) trace.fillcolor = own + "2e";
    });
    const layout = structuredClone(figure.layout);
    for (const name of ["xaxis", "yaxis"]) {
      const axis = layout[name];
      const title = { ...axis.title, font: { size: 12, color: colour.soft }, standoff: 8 };
      Object.assign(axis, { gridcolor: colour.line, linecolor: colour.line, zerolinecolor: colour.line, automargin: true, title });
    }
    Object.assign(layout.xaxis, { showgrid: false, showline: layout.meta !== "map" });
    layout.yaxis.showline = layout.meta !== "map";
    Object.assign(layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height: box.clientHeight,
      margin: { l: 8, r: 12, t: 8, b: 8 }, font: { size: 12, color: colour.ink, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: colour.card, bordercolor: colour.line, font: { color: colour.ink, size: 12 }, align: "left" },
      dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
    });
    return Plotly.react(box, data, layout, { responsive: true, displayModeBar: false });
  }

  async function start() {
    const packed = Uint8Array.from(atob(document.getElementById("library").textContent), (sign) => sign.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    charts.forEach(({ box }) => box.replaceChildren());
    await Promise.all(charts.map(draw));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(draw));
    charts.forEach((chart) => chart.card.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") === "true";
      button.dataset.traces.split(" ").forEach((number) => chart.off[shown ? "add" : "delete"](Number(number)));
      button.setAttribute("aria-pressed", String(!shown));
      draw(chart);
    })));
    document.documentElement.dataset.drawn = "yes";
  }

  if (!charts.length) document.documentElement.dataset.drawn = "yes";
  else if (!("DecompressionStream" in window)) tell("The charts need a newer browser.");
  else start().catch((error) => { tell("The chart could not be drawn."); throw error; });
})();

// What became of a test with a fault at each point of a rank: a line for each point, with its outcome.

/** Show the points of a sweep; what fails is a sentence, as in the report. */
function sweepPart(detail) {
  if (!detail.sweep) return null;
  const { fault, points = [] } = detail.sweep;
  const states = OUTCOMES.filter((state) => points.some(({ outcome }) => outcome === state));
  const counts = states.map((state) => `${count(points.filter(({ outcome }) => outcome === state).length)} ${state}`);
  const row = ({ number, outcome, name, location, message, seconds }) =>
    el(
      "tr",
      { "data-outcome": outcome },
      el("td", { class: "number", text: count(number) }),
      el("th", { scope: "row" }, breakable([name, location].filter(Boolean).join(" at "))),
      el("td", { class: "point" }, glyph(outcome), " ", outcome),
      el("td", null, breakable(message || "")),
      el("td", { class: "number", text: seconds === undefined ? "" : duration(seconds) }),
    );
  return section(
    "Faults on purpose",
    el("span", { class: "faint", text: fault }),
    el("p", { class: "largest", text: `${[plural(points.length, "run"), ...counts].join(", ")}.` }),
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { class: "errors points" },
        headRow(["", "point", "outcome", "failure", "time"].map((text) => el("th", { scope: "col", text }))),
        el("tbody", null, points.map(row)),
      ),
    ),
  );
}

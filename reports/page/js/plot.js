// The error of our run against the reference, step by step, on a log scale. The reference is the line at the foot.

const PLOT = { width: 560, height: 190, left: 46, right: 14, top: 14, bottom: 30 };

/** The largest error of rounding alone: half a unit in the last place of each precision. */
const ROUNDING = [
  ["fp64", 1.1e-16],
  ["fp32", 6e-8],
  ["bf16", 3.9e-3],
];

/** Return the powers of ten around the values; at least three, so that noise does not look like a cliff. */
function decades(values) {
  const shown = values.filter((value) => value > 0 && Number.isFinite(value));
  if (!shown.length) return [-17, -14];
  let low = Math.floor(Math.log10(Math.min(...shown)));
  let high = Math.ceil(Math.log10(Math.max(...shown)));
  while (high - low < 3) {
    low -= 1;
    if (high - low < 3) high += 1;
  }
  return [low, high];
}

/** Return what the law allows by a measure; null if the run file does not have it. */
const allowedBy = (allowed, measure) => (allowed ? number(allowed[measure] ?? 0) : null);

/** Return whether an error exceeds both of the allowed measures. */
const isOver = (step, allowed) =>
  Boolean(allowed) &&
  ["relative", "ulps"].every((measure) => !(number(step[measure]) <= allowedBy(allowed, measure)));

/** Plot the error over the steps; ``measure`` is relative or ulps. */
function plot(steps, measure, allowed) {
  const values = steps.map((step) => number(step[measure]));
  const limit = allowedBy(allowed, measure);
  const [low, high] = decades([...values, limit]);
  const inner = PLOT.height - PLOT.top - PLOT.bottom;
  const foot = PLOT.top + inner;
  const first = steps[0].step;
  const span = Math.max(1, steps.at(-1).step - first);
  const x = (step) => PLOT.left + 10 + ((PLOT.width - PLOT.left - PLOT.right - 20) * (step - first)) / span;
  // The foot is the reference itself: an error of zero lies on it, the smallest power a little above.
  const y = (value) => {
    if (value === 0) return foot;
    if (!Number.isFinite(value)) return PLOT.top;
    return foot - 14 - ((inner - 14) * (Math.log10(value) - low)) / (high - low);
  };
  const chart = svg("svg", {
    class: "plot",
    viewBox: `0 0 ${PLOT.width} ${PLOT.height}`,
    role: "img",
    "aria-label": plotLabel(steps, values, measure),
  });
  const every = Math.ceil((high - low) / 5);
  for (let power = low; power <= high; power += every) {
    chart.append(
      svg("line", {
        class: "grid",
        x1: PLOT.left,
        x2: PLOT.width - PLOT.right,
        y1: y(10 ** power),
        y2: y(10 ** power),
      }),
      svg("text", { class: "tick", x: PLOT.left - 6, y: y(10 ** power) + 3.5, "text-anchor": "end" }, `1e${power}`),
    );
  }
  if (measure === "relative") {
    for (const [name, value] of ROUNDING) {
      if (Math.log10(value) < low || Math.log10(value) > high) continue;
      chart.append(
        svg("line", { class: "rounding", x1: PLOT.left, x2: PLOT.width - PLOT.right, y1: y(value), y2: y(value) }),
        svg(
          "text",
          { class: "tick", x: PLOT.width - PLOT.right, y: y(value) - 4, "text-anchor": "end" },
          `${name} rounding`,
        ),
      );
    }
  }
  if (limit > 0) {
    const across = { x1: PLOT.left, x2: PLOT.width - PLOT.right, y1: y(limit), y2: y(limit) };
    chart.append(
      svg("line", { class: "allowed", ...across }),
      svg("text", { class: "tick allowed", x: PLOT.left + 4, y: y(limit) - 4 }, `allowed: ${figure(limit)}`),
    );
  }
  chart.append(
    svg("line", { class: "reference", x1: PLOT.left, x2: PLOT.width - PLOT.right, y1: foot, y2: foot }),
    svg("text", { class: "tick", x: PLOT.left - 6, y: foot + 3.5, "text-anchor": "end" }, "0"),
    svg("text", { class: "tick", x: PLOT.width - PLOT.right, y: foot - 4, "text-anchor": "end" }, "the reference"),
  );
  const points = steps.map((step, position) => [x(step.step), y(values[position])]);
  chart.append(
    svg("path", {
      class: "area",
      d: `M${points[0][0]},${foot} L${points.map(String).join(" L")} L${points.at(-1)[0]},${foot} Z`,
    }),
    svg("path", { class: "line", d: `M${points.map(String).join(" L")}` }),
  );
  const label = Math.ceil(steps.length / 12);
  steps.forEach((step, position) => {
    const [cx, cy] = points[position];
    const error =
      values[position] === 0 ? "exact" : `${figure(values[position])} ${measure === "ulps" ? "ulp" : "relative"}`;
    const title = `step ${step.step}: ${error}`;
    chart.append(
      svg(
        "circle",
        { class: dotClass(step, values[position], allowed), cx, cy, r: 3.2 },
        svg("title", null, title),
      ),
    );
    if (position % label === 0) {
      chart.append(svg("text", { class: "tick", x: cx, y: foot + 16, "text-anchor": "middle" }, String(step.step)));
    }
  });
  chart.append(svg("text", { class: "tick", x: PLOT.left - 6, y: foot + 16, "text-anchor": "end" }, "step"));
  return chart;
}

const dotClass = (step, value, allowed) => (value === 0 ? "dot exact" : isOver(step, allowed) ? "dot over" : "dot");

/** Describe what the law allows. Older run files do not have it. */
function allowedText(allowed) {
  if (!allowed) return "";
  const parts = [
    allowedBy(allowed, "relative") > 0 && `${figure(allowed.relative)} relative`,
    allowedBy(allowed, "ulps") > 0 && `${figure(allowed.ulps)} ulp`,
  ].filter(Boolean);
  return parts.length ? `Allowed: ${parts.join(" or ")}.` : "Allowed: nothing, it has to be bit for bit.";
}

function plotLabel(steps, values, measure) {
  const worst = values.indexOf(Math.max(...values));
  if (values.every((value) => value === 0)) return `the error over ${plural(steps.length, "step")}: nought at each`;
  const largest = `largest ${figure(values[worst])} at step ${steps[worst].step}`;
  return `the error over ${plural(steps.length, "step")}, ${measure}: ${largest}`;
}

const ulpsBefore = (ulps) => (ulps < MOST_ULPS ? `${figure(ulps)} ulp, ` : "");

/** Make the plot, the choice of the measure, and a sentence about the largest error. */
function errorSection(detail) {
  const { steps, error } = detail;
  if (!error && !(steps && steps.length)) return null;
  const facts = [];
  if (error) {
    const exact = number(error.ulps) === 0 && number(error.absolute) === 0;
    facts.push(
      el(
        "p",
        { class: "largest" },
        exact
          ? "Bit for bit equal to the reference."
          : `Largest: ${ulpsBefore(number(error.ulps))}${figure(number(error.relative))} relative, ` +
              `${figure(number(error.absolute))} absolute, at step ${error.step} in `,
        !exact && el("code", { text: error.name }),
        !exact && `, rank ${error.rank}.`,
      ),
    );
  }
  const allowed = error ? error.allowed : null;
  if (allowed) facts.push(el("p", { class: "largest", text: allowedText(allowed) }));
  if (!steps || !steps.length) return section("Error against the reference", null, ...facts);
  const holder = el("div", { class: "plotted" }, plot(steps, "relative", allowed));
  const choices = ["relative", "ulps"].map((measure) =>
    el("button", {
      type: "button",
      text: measure,
      "aria-pressed": String(measure === "relative"),
      on: {
        click: (event) => {
          put(holder, plot(steps, measure, allowed));
          for (const button of event.target.parentNode.children)
            button.setAttribute("aria-pressed", String(button === event.target));
        },
      },
    }),
  );
  const choice = el("span", { class: "choice", role: "group", "aria-label": "what is measured" }, choices);
  return section("Error against the reference", choice, holder, ...facts);
}

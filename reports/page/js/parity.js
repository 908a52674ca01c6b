// The calls of everyrank.parity in a case: faults, and each tensor by kind and step with its error and its bound.

/** The kinds across, with what the whole model has of each in place of a tensor. */
const PARITY_KINDS = [
  { kind: "initialization", heading: "start", title: "the initialization" },
  { kind: "buffer", heading: "buffers", title: "the module's buffers, as the step begins" },
  {
    kind: "forward",
    heading: "output",
    title: "what the module returns; of the whole model, the loss",
    whole: "loss",
  },
  { kind: "activation-gradient", heading: "its gradient", title: "the gradient of what the module returns" },
  { kind: "clip", heading: "at the clip", title: "the gradients of the module's parameters, as a clip gets them" },
  {
    kind: "gradient",
    heading: "gradient",
    title: "the gradients of the module's parameters; of the whole model, their norm",
    whole: "norm",
  },
  { kind: "rate", heading: "rate", title: "the learning rates of the optimizer's step" },
  { kind: "state", heading: "state", title: "what the optimizer keeps of the module's parameters, before its step" },
  { kind: "update", heading: "update", title: "the module's parameters after the step" },
];

const KIND_TEXTS = {
  initialization: "initialization",
  buffer: "buffer",
  forward: "output",
  loss: "loss",
  "activation-gradient": "gradient of the output",
  clip: "gradient at the clip",
  gradient: "gradient",
  rate: "learning rate",
  state: "optimizer's state",
  norm: "norm of the gradients",
  update: "update",
};

/** What is said of a tensor beside its error, the most urgent first. */
const STATES = {
  first: { sign: "✕", text: "deviates first" },
  also: { sign: "+", text: "deviates, too" },
  same: { sign: "=", text: "the same has happened to it" },
  follows: { sign: "›", text: "follows from it" },
  "not-compared": { sign: "?", text: "not compared" },
  sum: { sign: "Σ", text: "right as a sum over ranks" },
  ok: { sign: "", text: "within its bound" },
};
const STATE_NAMES = Object.keys(STATES);

/** How many modules are shown at first, and how many of them stand before the first that deviates. */
const SHOWN = { all: 40, before: 4 };

/** Return the values of a row at a step of its pass, or null if it has none there. */
function valueOf(row, step) {
  if (step >= (row.errors || []).length || (row.states || [])[step] === "nothing") return null;
  const limits = row.limits || [];
  return {
    row,
    error: row.errors[step] ?? null,
    limit: limits[limits.length > 1 ? step : 0] || null,
    state: (row.states || [])[step] || (row.errors[step] === null ? "not-compared" : "ok"),
  };
}

/** Return how far an error reaches towards its bound, on a log scale: 1 is the bound, 0 a hundred-millionth of it. */
function reach({ error, limit }) {
  if (!error || !limit) return 0;
  return Math.min(1, Math.max(0.04, 1 + Math.log10(number(error) / limit) / 8));
}

const bound = ({ error, limit }) =>
  error === null ? "" : limit ? `${shownError(error)} of ${figure(limit)}` : shownError(error);

/** The largest float stands for infinity, which JSON does not have. */
const shownError = (error) => (number(error) > 1e300 ? "∞" : figure(error));

const tensorName = ({ kind, tensor }) => (tensor ? `${KIND_TEXTS[kind]} of ${tensor}` : `the ${KIND_TEXTS[kind]}`);

/** Return the module that a row belongs to; empty for the whole model. */
function moduleOf({ kind, tensor }) {
  if (kind === "forward" || kind === "activation-gradient") return tensor;
  return tensor.includes(".") ? tensor.slice(0, tensor.lastIndexOf(".")) : "";
}

/** Return the modules in the order of the plain model's run, each with its rows. */
function modulesOf(rows) {
  const names = rows.filter((row) => row.kind === "forward").map(moduleOf);
  let before = -1;
  for (const row of rows.filter((row) => row.kind !== "forward")) {
    const name = moduleOf(row);
    if (name === "") continue;
    if (!names.includes(name)) names.splice(before + 1, 0, name);
    before = names.indexOf(name);
  }
  const byModule = grouped(rows, moduleOf);
  return ["", ...new Set(names)].filter((name) => byModule.has(name)).map((name) => [name, byModule.get(name)]);
}

const isParity = (kind) => (row) => row.kind === kind.kind || row.kind === kind.whole;

const urgencyOf = ({ state }) => STATE_NAMES.indexOf(state);
const shareOf = ({ error, limit }) => (error && limit ? number(error) / limit : 0);

/** Compare two values: the most urgent first, then the one that is nearest to its bound. */
const urgentFirst = (left, right) => urgencyOf(left) - urgencyOf(right) || shareOf(right) - shareOf(left);

/** Return the kinds across, each with its steps; kinds of which no tensor is known are left out. */
function columnsOf(rows) {
  return PARITY_KINDS.map((kind) => {
    const steps = rows.filter(isParity(kind)).map((row) => (row.errors || []).length);
    return { ...kind, steps: Math.max(0, ...steps) };
  }).filter(({ steps }) => steps > 0);
}

const stepName = (pass, kind, step) =>
  kind.kind === "initialization" ? "before the first step" : `step ${(pass.first || 1) + step}`;

/** Make the cell of a module in a kind at a step: a sign, and a bar that ends at the bound. */
function mark(pass, module, kind, step, values, open) {
  const worst = [...values].sort(urgentFirst)[0];
  const { sign, text } = STATES[worst.state] || { sign: "!", text: worst.state };
  const exact = worst.state === "ok" && worst.error === 0;
  const figures = bound(worst);
  const label = `${tensorName(worst.row)}, ${stepName(pass, kind, step)}: ${text}${figures && `, ${figures}`}`;
  const bar = el("i", { class: "reach" });
  bar.style.width = `${100 * reach(worst)}%`;
  return el(
    "button",
    {
      type: "button",
      class: "mark",
      tabindex: "-1",
      "data-state": worst.state,
      "aria-expanded": "false",
      "aria-label": label,
      title: label,
      on: { click: (event) => open(event.currentTarget, module, kind, step, values) },
    },
    el("span", { class: "sign", "aria-hidden": "true", text: exact ? "0" : sign }),
    worst.error !== null && !exact && el("span", { class: "reaches" }, bar),
  );
}

/** Make the matrix of a pass: modules down, kinds and steps across. An opened cell has its tensors below its row. */
function parityMatrix(call, pass) {
  const across = columnsOf(pass.rows);
  const modules = modulesOf(pass.rows);
  const open = (button, module, kind, step, values) =>
    toggleTensors(button, tensorsOf(call, pass, module, kind, step, values));
  const rowOf = ([module, rows]) =>
    el(
      "tr",
      null,
      el("th", { scope: "row" }, module ? breakable(module) : el("i", { text: "the whole model" })),
      across.flatMap((kind) =>
        Array.from({ length: kind.steps }, (_, step) => {
          const values = rows
            .filter(isParity(kind))
            .map((row) => valueOf(row, step))
            .filter(Boolean);
          const first = step === 0 ? "first" : null;
          return el("td", { class: first }, values.length > 0 && mark(pass, module, kind, step, values, open));
        }),
      ),
    );
  const heads = el(
    "thead",
    null,
    el(
      "tr",
      null,
      el("th"),
      across.map(({ heading, title, steps }) =>
        el("th", { scope: "colgroup", class: "first", colspan: steps, title, text: heading }),
      ),
    ),
    el(
      "tr",
      null,
      el("th", { class: "corner faint", text: "module / step" }),
      across.flatMap((kind) =>
        Array.from({ length: kind.steps }, (_, step) =>
          el("th", {
            scope: "col",
            class: step === 0 ? "first" : null,
            text: kind.kind === "initialization" ? "0" : String((pass.first || 1) + step),
          }),
        ),
      ),
    ),
  );
  const body = el("tbody");
  const label = `tensors of ${pass.dtype} by module, kind and step`;
  const table = el("table", { class: "marks", "aria-label": label }, heads, body);
  const rest = shownModules(modules, body, rowOf);
  const firstMark = table.querySelector(".mark:is([data-state='first'], [data-state='also'])");
  const start = firstMark || table.querySelector(".mark");
  if (start) start.tabIndex = 0;
  if (firstMark) firstMark.click();
  return [el("div", { class: "scroll" }, table), rest];
}

/** Put the first modules into a table, from a few before the first that deviates; return buttons for the others. */
function shownModules(modules, body, rowOf) {
  const deviates = ([, rows]) => rows.some((row) => (row.states || []).some((state) => urgencyOf({ state }) < 4));
  const first = Math.max(0, modules.findIndex(deviates) - SHOWN.before);
  const start = modules.length > SHOWN.all ? first : 0;
  const end = start + SHOWN.all;
  body.append(...modules.slice(start, end).map(rowOf));
  const more = (some, text, add) => {
    if (!some.length) return null;
    const button = el("button", {
      type: "button",
      class: "more",
      text: `${plural(some.length, "module")} ${text}`,
    });
    button.addEventListener("click", () => (add(...some.map(rowOf)), button.remove()));
    return button;
  };
  return el(
    "p",
    { class: "rest-of-modules" },
    more(modules.slice(0, start), "before these", (...rows) => body.prepend(...rows)),
    more(modules.slice(end), "after these", (...rows) => body.append(...rows)),
  );
}

/** Show what is known of a cell below its row, or hide it. */
function toggleTensors(button, inner) {
  const table = button.closest("table");
  const wasOpen = button.getAttribute("aria-expanded") === "true";
  for (const other of table.querySelectorAll(".mark[aria-expanded='true']"))
    other.setAttribute("aria-expanded", "false");
  for (const opened of table.querySelectorAll("tr.opened")) opened.remove();
  if (wasOpen) return;
  button.setAttribute("aria-expanded", "true");
  const row = button.closest("tr");
  const width = [...row.children].length;
  row.after(el("tr", { class: "opened" }, el("td", { colspan: width }, el("div", { class: "tensors" }, inner))));
}

/** Make what is known of a module's tensors in a kind at a step: errors, faults, and the maps over ranks. */
function tensorsOf(call, pass, module, kind, step, values) {
  const rows = values.map((value) =>
    el(
      "tr",
      { "data-state": value.state },
      el("th", { scope: "row" }, breakable(value.row.tensor || KIND_TEXTS[value.row.kind])),
      el("td", { text: shownOrDash(value.error) }),
      el("td", { text: value.limit ? figure(value.limit) : "–" }),
      el("td", null, stateText(value.state)),
    ),
  );
  const names = values.map((value) => value.row.tensor);
  const isHere = (fault) => names.includes(fault.tensor) && (fault.kind === kind.kind || fault.kind === kind.whole);
  return [
    el("h4", null, `${kind.whole && !module ? kind.whole : kind.heading}, ${stepName(pass, kind, step)}`),
    (call.faults || []).filter(isHere).map(meaningLine),
    el(
      "table",
      { class: "errors" },
      headRow(["tensor", "error", "bound", ""].map((text) => el("th", { scope: "col", text }))),
      el("tbody", null, rows),
    ),
    mapsOf(call, names),
  ];
}

const shownOrDash = (error) => (error === null ? "–" : shownError(error));

const stateText = (state) => [
  STATES[state] &&
    STATES[state].sign &&
    el("span", { class: "sign", "data-state": state, text: STATES[state].sign }),
  ` ${STATES[state] ? STATES[state].text : state}`,
];

/** Make the sentence of a fault, with the id of its pattern. */
function faultLine(fault) {
  return el(
    "p",
    { class: "fault" },
    fault.pattern && patternTag(fault),
    " ",
    // Names stand in backticks.
    fault.text.split("`").map((text, position) => (position % 2 ? el("code", null, breakable(text)) : text)),
  );
}

/** Make the line that explains the pattern of a fault, whose sentence stands above the matrix. */
const meaningLine = (fault) =>
  fault.pattern && el("p", { class: "fault" }, patternTag(fault), fault.meaning && ` ${fault.meaning}`);

const patternTag = (fault) =>
  el("span", { class: "tag", title: fault.meaning || "the pattern", text: fault.pattern });

// --- the part of the drawer ------------------------------------------------------------------------------

/** Return the value of a pass that is nearest to its bound, with its step. */
function nearest(pass) {
  const all = pass.rows.flatMap((row) =>
    (row.errors || []).map((_, step) => ({ ...valueOf(row, step), step })).filter(({ state }) => state === "ok"),
  );
  return all.reduce((best, value) => (best && shareOf(best) >= shareOf(value) ? best : value), null);
}

function parityFacts(call) {
  const facts = [
    `${count(call.compared)} of ${plural(call.tensors, "tensor")} compared on ${plural(call.ranks, "rank")} over ` +
      `${plural(call.steps, "step")}, in ${call.dtypes.join(" and ")}; the batch is split: ${call.split || "–"}.`,
  ];
  for (const pass of call.passes || []) {
    const value = nearest(pass);
    if (!value || !value.error) continue;
    const kind = PARITY_KINDS.find((each) => isParity(each)(value.row));
    const subject = `${tensorName(value.row)}, ${stepName(pass, kind, value.step)}`;
    facts.push(`Nearest to its bound in ${pass.dtype}: ${subject}, ${bound(value)}.`);
  }
  return facts.map((text) => el("p", { class: "largest" }, breakable(text)));
}

/** Make the line about what is not compared. */
function notCompared(call) {
  const names = call.not_compared || [];
  if (!names.length) return null;
  const left = call.not_compared_left_out ? ` and ${count(call.not_compared_left_out)} more` : "";
  return el("p", { class: "largest" }, "Not compared: ", breakable(names.join(", ")), `${left}.`);
}

const parityLegend = (call) => {
  const states = new Set((call.passes || []).flatMap((pass) => pass.rows.flatMap((row) => row.states || [])));
  return el(
    "p",
    { class: "legend faint small" },
    STATE_NAMES.filter((state) => states.has(state) && STATES[state].sign).map((state) =>
      el("span", { class: "key" }, stateText(state)),
    ),
    el("span", { class: "key" }, "0 exact"),
    el("span", { class: "key" }, "bar: the error on a log scale, full at its bound"),
    el("span", { class: "key" }, "a cell opens its tensors and which rank holds what"),
  );
};

/** Show one call: its faults, what was compared, and the matrix of a pass that can be chosen. */
function callPart(call, title) {
  const holder = el("div", { class: "parity" });
  const show = (pass) =>
    put(
      holder,
      parityMatrix(call, pass),
      pass.left_out &&
        el("p", { class: "largest", text: `${plural(pass.left_out, "row")} of ${pass.dtype} left out.` }),
    );
  const passes = (call.passes || []).filter((pass) => pass.rows.length);
  const red = passes.find((pass) => pass.rows.some((row) => (row.states || []).includes("first")));
  const chosen = red || passes[0];
  const choices = passes.map((pass) =>
    el("button", {
      type: "button",
      text: pass.dtype,
      "aria-pressed": String(pass === chosen),
      on: {
        click: (event) => {
          show(pass);
          for (const button of event.target.parentNode.children)
            button.setAttribute("aria-pressed", String(button === event.target));
        },
      },
    }),
  );
  if (chosen) show(chosen);
  return section(
    title,
    choices.length > 1 && el("span", { class: "choice", role: "group", "aria-label": "the dtype" }, choices),
    (call.faults || []).map(faultLine),
    chosen && [holder, parityLegend(call)],
    parityFacts(call),
    notCompared(call),
    placementsOf(call),
    (call.remarks || []).map((text) => el("p", { class: "largest" }, breakable(text))),
  );
}

/** Show the calls of parity in a case, the last one first: the test ended with it. */
function parityPart(detail) {
  const calls = detail.parity || [];
  const all = Math.max(detail.parity_calls || 0, calls.length);
  const left = all - calls.length;
  const parts = calls.map((call, position) => {
    const number = position === calls.length - 1 ? all : position + 1;
    return callPart(call, all > 1 ? `Parity, call ${number} of ${all}` : "Parity");
  });
  return [...parts.reverse(), left > 0 && el("p", { class: "largest", text: `${plural(left, "call")} left out.` })];
}

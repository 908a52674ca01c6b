// The page as a whole: what the run was, how it came out, and the view that the address names.

const NAMES = {
  matrix: "Matrix",
  cases: PLAIN ? "Tests" : "Cases",
  time: "Time",
  findings: "Findings",
  history: "History",
};
const DRAW = { matrix: drawMatrix, cases: drawCases, time: drawTime, findings: drawFindings, history: drawHistory };

const day = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 16) + " UTC";

/** The run's page at its CI service, where there is one. */
const ciFact = (run) => (run.ci_link ? link(run.ci_link, run.ci || "run") : run.ci);

/** What ran where. */
function drawFacts() {
  const run = data.runs[0];
  const all = (field) => [...new Set(data.runs.map((one) => one[field]))].join(", ");
  const facts = [
    ["run", data.runs.map((one) => one.file).join(", ")],
    ["started", day(run.started)],
    [
      "took",
      data.runs.every((one) => one.seconds !== null)
        ? duration(data.runs.reduce((sum, one) => sum + one.seconds, 0))
        : "not to its end",
    ],
    ["commit", all("source"), all("commit")],
    ["CI", data.runs.filter((one) => one.ci || one.ci_link).map((one) => [ciFact(one), " "])],
    ["torch", all("torch")],
    ["python", all("python")],
    ["everyrank", all("kit")],
    ["launcher", all("launcher")],
    ["workers", String(data.runs.reduce((sum, one) => sum + one.workers, 0))],
    ["on", all("platform")],
    ["devices", data.runs.flatMap((one) => one.devices).join(", ") || "CPU"],
    ["backends", [...new Set(data.runs.flatMap((one) => one.backends))].join(", ")],
    ["seed", all("seed")],
    ["command", data.runs[0].command.join(" ")],
  ];
  put(
    byId("facts"),
    facts
      .filter(([, value]) => value.length > 0)
      .map(([name, value, title]) =>
        el(
          "div",
          null,
          el("dt", { text: name }),
          el("dd", { title: title || (typeof value === "string" ? value : null) }, value),
        ),
      ),
  );
}

/** The sentence at the top: it never rounds a bad run up. Python has decided it, as for the badge and the diff. */
function drawVerdict() {
  const { state, sentences } = data.conclusion;
  put(
    byId("sentence"),
    sentences.map(([lead, rest], at) => [at ? " " : "", el("b", { text: lead }), `${rest}.`]),
  );
  byId("verdict").dataset.state = state;
  if (data.shortened)
    byId("sentence").append(
      el("small", { text: " Long texts are shortened on this page; the run file has them whole." }),
    );
}

function drawViews(of, indices) {
  const red = indices.reduce((sum, index) => sum + (isRed(index) ? 1 : 0), 0);
  const says = { cases: count(indices.length), findings: red ? count(red) : "" };
  put(
    byId("views"),
    VIEWS.map((view, at) =>
      el(
        "button",
        {
          type: "button",
          id: `view-${view}`,
          hidden: view === "history" && !hasHistory(),
          "aria-current": view === of.view ? "page" : null,
          title: `${NAMES[view]} (${at + 1})`,
          on: { click: () => go({ view }) },
        },
        NAMES[view],
        says[view] && el("span", { class: "faint", text: ` ${says[view]}` }),
      ),
    ),
  );
}

const differs = (of, before, fields) =>
  !before || fields.some((field) => String(of[field]) !== String(before[field]));

/** Draw what the change of state touched: opening a case leaves the view below as it is. */
function draw(of = state, before = null) {
  const indices = matched(of);
  if (differs(of, before, ["view", "sort", "paint", ...FILTERS])) {
    const focused = document.activeElement;
    const cell = focused && focused.dataset ? focused.dataset.cell : null;
    const inMain = byId("main").contains(focused);
    drawFilters(of, indices);
    drawOutcomes(of);
    drawViews(of, indices);
    byId("main").dataset.view = of.view;
    if (of.view !== "cases") list.body = null;
    DRAW[of.view](byId("main"), of, indices);
    if (inMain && !of.case) {
      const again = cell && [...document.querySelectorAll(".cell")].find((one) => one.dataset.cell === cell);
      if (again) again.focus();
      else if (before && before.view === of.view) focusMain();
    }
  } else if (of.view === "cases" && of.case) {
    const at = list.indices.indexOf(indexOf(of.case));
    if (at >= 0) {
      list.at = at;
      reveal(at);
      drawRows();
    }
  }
  drawDrawer(of, before);
}

// --- light and dark --------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = "";

/** As the system has it, until somebody chooses. */
function setTheme() {
  const theme = chosen || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", String(theme === "dark"));
  paint();
}

/** A choice is kept where the browser lets a file keep anything. */
function turnTheme() {
  chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme();
  try {
    localStorage.setItem("everyrank-theme", chosen);
  } catch {
    // The choice then lasts as long as the page.
  }
}

try {
  const kept = localStorage.getItem("everyrank-theme");
  if (kept === "dark" || kept === "light") chosen = kept;
} catch {
  // Nothing was kept.
}
dark.addEventListener("change", setTheme);

/** What each shape stands for: in the help, where a telephone has it too. */
function drawShapes() {
  put(
    byId("shapes"),
    OUTCOMES.map((outcome) => {
      const says = (PLAIN && SAYS_OF_TESTS[outcome]) || SAYS[outcome];
      return el(
        "div",
        null,
        el("dt", { "data-outcome": outcome }, glyph(outcome), " ", outcome),
        el("dd", { text: says }),
      );
    }),
  );
}

// --- begin -------------------------------------------------------------------------------------------------

byId("theme").addEventListener("click", turnTheme);
setTheme();
byId("help-open").addEventListener("click", () => byId("help").showModal());
byId("help-close").addEventListener("click", () => byId("help").close());
drawShapes();
makeFilters();
drawFacts();
drawVerdict();
onState(draw);
draw();
document.documentElement.dataset.ready = "true";

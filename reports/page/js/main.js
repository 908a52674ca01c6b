// The page as a whole: the facts of the run, its conclusion, and the view that the address names. A view is a
// function of the state, which is the address, and of the cases that pass the filters.

const NAMES = {
  matrix: "Matrix",
  cases: PLAIN ? "Tests" : "Cases",
  time: "Time",
  findings: "Findings",
  history: "History",
};
const DRAW = { matrix: drawMatrix, cases: drawCases, time: drawTime, findings: drawFindings, history: drawHistory };

const day = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 16) + " UTC";

/** Link to the run's page at its CI service, if there is one. */
const ciFact = (run) => (run.ci_link ? link(run.ci_link, run.ci || "run") : run.ci);

/** Draw the facts of the runs. */
function drawFacts() {
  const all = (field) => [...new Set(data.runs.map((run) => run[field]))].join(", ");
  const facts = [
    ["run", data.runs.map((run) => run.file).join(", ")],
    ["started", day(data.runs[0].started)],
    [
      "took",
      data.runs.every((run) => run.seconds !== null)
        ? duration(data.runs.reduce((sum, run) => sum + run.seconds, 0))
        : "not to its end",
    ],
    ["against", data.against ? `${data.against.file}: ${data.against.verdict}` : ""],
    ["commit", all("source"), all("commit")],
    ["CI", data.runs.filter((run) => run.ci || run.ci_link).map((run) => [ciFact(run), " "])],
    ["torch", all("torch")],
    ["python", all("python")],
    ["everyrank", all("kit")],
    ["launcher", all("launcher")],
    ["workers", String(data.runs.reduce((sum, run) => sum + run.workers, 0))],
    ["on", all("platform")],
    ["devices", data.runs.flatMap((run) => run.devices).join(", ") || "CPU"],
    ["backends", [...new Set(data.runs.flatMap((run) => run.backends))].join(", ")],
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

/** Draw the sentence at the top, which Python has made from the conclusion, as for the badge and the diff. */
function drawVerdict() {
  const { state, sentences } = data.conclusion;
  put(
    byId("sentence"),
    sentences.map(([lead, rest], position) => [position ? " " : "", el("b", { text: lead }), `${rest}.`]),
  );
  byId("verdict").dataset.state = state;
  if (data.shortened)
    byId("sentence").append(
      el("small", { text: " Long texts are shortened on this page; the run file has them whole." }),
    );
}

function drawViews(wanted, indices) {
  const red = indices.filter(isRed).length;
  const counts = { cases: count(indices.length), findings: red ? count(red) : "" };
  put(
    byId("views"),
    VIEWS.map((view, position) =>
      el(
        "button",
        {
          type: "button",
          id: `view-${view}`,
          hidden: (view === "history" && !hasHistory()) || (view === "matrix" && !hasMatrix()),
          "aria-current": view === wanted.view ? "page" : null,
          title: `${NAMES[view]} (${position + 1})`,
          on: { click: () => go({ view }) },
        },
        NAMES[view],
        counts[view] && el("span", { class: "faint", text: ` ${counts[view]}` }),
      ),
    ),
  );
}

const differs = (wanted, before, fields) =>
  !before || fields.some((field) => String(wanted[field]) !== String(before[field]));

/** Draw what has changed. If a case is opened, the view below stays as it is. */
function draw(wanted = state, before = null) {
  const indices = matched(wanted);
  if (differs(wanted, before, ["view", "sort", "paint", ...FILTERS])) {
    const focused = document.activeElement;
    const cell = focused && focused.dataset ? focused.dataset.cell : null;
    const inMain = byId("main").contains(focused);
    drawFilters(wanted, indices);
    drawOutcomes(wanted);
    drawViews(wanted, indices);
    byId("main").dataset.view = wanted.view;
    if (wanted.view !== "cases") list.body = null;
    DRAW[wanted.view](byId("main"), wanted, indices);
    if (inMain && !wanted.case) {
      const again =
        cell && [...document.querySelectorAll(".cell")].find((candidate) => candidate.dataset.cell === cell);
      if (again) again.focus();
      else if (before && before.view === wanted.view) focusMain();
    }
  } else if (wanted.view === "cases" && wanted.case) {
    const position = list.indices.indexOf(indexOf(wanted.case));
    if (position >= 0) {
      list.current = position;
      reveal(position);
      drawRows();
    }
  }
  drawDrawer(wanted, before);
}

// --- light and dark --------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = "";

/** Set the theme: that of the system, until a person chooses. */
function setTheme() {
  const theme = chosen || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", String(theme === "dark"));
  paint();
}

/** Change the theme, and keep the choice if the browser lets a file keep anything. */
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

/** Explain the shapes in the help: a phone shows no titles. */
function drawShapes() {
  put(
    byId("shapes"),
    OUTCOMES.map((outcome) => {
      const meaning = (PLAIN && MEANINGS_OF_TESTS[outcome]) || MEANINGS[outcome];
      return el(
        "div",
        null,
        el("dt", { "data-outcome": outcome }, glyph(outcome), " ", outcome),
        el("dd", { text: meaning }),
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

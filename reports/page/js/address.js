// What is seen stands in the address: it can be kept, sent and gone back from.

/** In the order of their tabs: a page opens on the first. */
const VIEWS = PLAIN
  ? ["cases", "matrix", "time", "findings", "history"]
  : ["matrix", "cases", "time", "findings", "history"];
const FILTERS = ["q", "outcome", ...CHOICES.map((by) => by.name)];
const FIELDS = ["view", ...FILTERS, "sort", "paint", "case", "scope"];

/** The address in parts; what is not understood is left out. */
function parsed(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const state = {};
  for (const field of FIELDS) state[field] = given.get(field) || "";
  state.view = VIEWS.includes(state.view) ? state.view : VIEWS[0];
  state.outcome = state.outcome.split(",").filter((one) => OUTCOMES.includes(one));
  return state;
}

function formatted(state) {
  const parts = new URLSearchParams();
  for (const field of FIELDS) {
    const value = field === "outcome" ? state.outcome.join(",") : state[field];
    if (value && !(field === "view" && value === VIEWS[0])) parts.set(field, value);
  }
  return "#" + parts.toString();
}

let state = parsed(location.hash);
const listeners = [];

const onState = (listener) => listeners.push(listener);

function tell(before) {
  for (const listener of listeners) listener(state, before);
}

/** Change parts of what is seen. A step is one to go back to; without it (while typing) the place is kept. */
function go(changes, step = true) {
  const before = state;
  state = { ...state, ...changes };
  const target = formatted(state);
  if (target !== formatted(before)) history[step ? "pushState" : "replaceState"](null, "", target);
  tell(before);
}

function arrived() {
  const before = state;
  state = parsed(location.hash);
  tell(before);
}

// Back and forward give popstate, an address that was typed in gives both: the second finds nothing changed.
addEventListener("popstate", arrived);
addEventListener("hashchange", () => formatted(state) !== formatted(parsed(location.hash)) && arrived());

const isFiltered = (of) => FILTERS.some((field) => of[field].length > 0);
const unfiltered = () => ({ ...Object.fromEntries(FILTERS.map((field) => [field, ""])), outcome: [] });

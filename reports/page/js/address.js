// The state of the page stands in its address: a person can keep it, send it and go back to it.

/** The views, in the order of their tabs. A page opens on the first. */
const VIEWS =
  PLAIN || !COUNT
    ? ["cases", "matrix", "time", "findings", "history"]
    : ["matrix", "cases", "time", "findings", "history"];
const FILTERS = ["q", "outcome", ...CHOICES.map((by) => by.name)];
const FIELDS = ["view", ...FILTERS, "sort", "paint", "case", "scope"];

/** Read the state from an address. Unknown parts are left out. */
function parsed(hash) {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  const state = {};
  for (const field of FIELDS) state[field] = parameters.get(field) || "";
  state.view = VIEWS.includes(state.view) ? state.view : VIEWS[0];
  state.outcome = state.outcome.split(",").filter((outcome) => OUTCOMES.includes(outcome));
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

function notify(before) {
  for (const listener of listeners) listener(state, before);
}

/** Change parts of the state. Unless it is a step (while a person types), the back button does not return to it. */
function go(changes, step = true) {
  const before = state;
  state = { ...state, ...changes };
  const target = formatted(state);
  if (target !== formatted(before)) history[step ? "pushState" : "replaceState"](null, "", target);
  notify(before);
}

function arrived() {
  const before = state;
  state = parsed(location.hash);
  notify(before);
}

// Back and forward send popstate; an address that was typed in sends both, and the second event changes nothing.
addEventListener("popstate", arrived);
addEventListener("hashchange", () => formatted(state) !== formatted(parsed(location.hash)) && arrived());

const isFiltered = (wanted) => FILTERS.some((field) => wanted[field].length > 0);
const unfiltered = () => ({ ...Object.fromEntries(FILTERS.map((field) => [field, ""])), outcome: [] });

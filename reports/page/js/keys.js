// The keyboard: everything that a pointer can do.

const typing = (target) => target.matches && target.matches("input, select, textarea");

/** Keys while a case is open. */
function inDrawer(event) {
  if (event.key === "Escape") closeCase();
  else if (event.key === "j" || event.key === "k") turn(event.key === "j" ? 1 : -1);
  else return false;
  return true;
}

function anywhere(event) {
  const view = VIEWS[Number(event.key) - 1];
  if (event.key === "/") byId("filter-q").select();
  else if (event.key === "?") byId("help").showModal();
  else if (event.key === "n" || event.key === "N") return turnToRed(event.key === "n" ? 1 : -1);
  else if (event.key === "t") turnTheme();
  else if (view && !byId(`view-${view}`).hidden) go({ view });
  else if (event.key === "Escape" && isFiltered(state)) go({ ...unfiltered() });
  else return false;
  return true;
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (typing(event.target)) {
    // The focus leaves the text for the cases that it left.
    if (event.key === "Escape" || (event.key === "Enter" && event.target.id === "filter-q")) focusMain();
    else return;
    event.preventDefault();
    return;
  }
  const done =
    (state.case && inDrawer(event)) ||
    moveInMatrix(event) ||
    moveInList(event) ||
    moveInTime(event) ||
    anywhere(event);
  if (done) event.preventDefault();
});

/** The first thing in the view that the arrows move over. */
function focusMain() {
  const first = byId("main").querySelector('.cell[tabindex="0"], .rows, canvas');
  (first || byId("main")).focus();
}

// Tab stays in the drawer only where it covers the page.
addEventListener("keydown", (event) => {
  const drawer = byId("drawer");
  if (event.key !== "Tab" || drawer.hidden || !matchMedia("(max-width: 1000px)").matches) return;
  const stops = [
    ...drawer.querySelectorAll("button:not([disabled]):not([tabindex='-1']), a[href], summary, pre[tabindex]"),
  ];
  const position = stops.indexOf(document.activeElement);
  const to = event.shiftKey
    ? position <= 0
      ? stops.at(-1)
      : null
    : position === stops.length - 1 || position < 0
      ? stops[0]
      : null;
  if (to) {
    event.preventDefault();
    to.focus();
  }
});

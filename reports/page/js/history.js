// The nights before: how each law came out, night by night.

const hasHistory = () => Boolean(data.history && data.history.nights && data.history.nights.length > 1);

function drawHistory(into) {
  put(into, el("p", { class: "nothing", text: "There is no history on this page." }));
}

// Format a failure as Markdown for an issue; and copy texts to the clipboard, also from a page on the disk.

/** The most characters of a failure text and of a captured output: an issue has room for 65,536. */
const ROOM = { text: 12_000, output: 3_000, outputs: 6 };

/** A fence that no run of backticks in the text ends. */
function fence(text, least) {
  const runs = text.match(/`+/g) || [];
  return "`".repeat(Math.max(least, ...runs.map((run) => run.length + 1)));
}

/** A block that shows the text as it is. */
function fenced(text) {
  const shown = text.replace(/\r\n?/g, "\n").replace(/\n+$/, "");
  const around = fence(shown, 3);
  return `${around}\n${shown}\n${around}`;
}

/** A span of code on one line; spaces keep backticks at its ends apart from the fence. */
function span(text) {
  const shown = text.replace(/\s+/g, " ").trim() || " ";
  const around = fence(shown, 1);
  return shown.includes("`") ? `${around} ${shown} ${around}` : around + shown + around;
}

/** Cut a text that is too long in its middle. */
function within(text, most) {
  if (text.length <= most) return text;
  const left = text.length - most;
  return `${text.slice(0, most / 2)}\n[… ${count(left)} characters left out …]\n${text.slice(-most / 2)}`;
}

/** Return the versions, the world and the source that the case ran with. */
function circumstances(index) {
  const run = data.runs[column.run[index]];
  const size = column.size[index] ? plural(column.size[index], "rank") : "";
  const versions = [`everyrank ${run.kit}`, `torch ${run.torch}`, `Python ${run.python}`, run.platform];
  const world = [
    size,
    `launcher ${run.launcher}`,
    ...run.backends,
    ...(run.devices.length ? run.devices : ["CPU"]),
  ];
  return [
    ["subject", subjectOf(index)],
    ["optimizer", optimizerOf(index)],
    ["world", world.filter(Boolean).join(", ")],
    ["versions", versions.join(", ")],
    ["commit", run.commit && run.source.replace(run.commit.slice(0, 10), run.commit)],
    ["CI run", run.ci_link],
  ];
}

function issueText(index, detail) {
  const parts = [`### ${span(idOf(index))}: ${outcomeOf(index)}`, ""];
  if (messageOf(index)) parts.push(fenced(detail.message || messageOf(index)), "");
  for (const [name, value] of circumstances(index)) if (value) parts.push(`- ${name}: ${span(value)}`);
  if (detail.rule) parts.push(`- decided by the rule ${span(detail.rule)}`);
  if (column.alone[index]) parts.push("- passes alone, in a world that has served no test before");
  if (detail.repeat) parts.push("", "To repeat:", "", fenced(detail.repeat));
  if (detail.text) parts.push("", "Failure:", "", fenced(within(detail.text, ROOM.text)));
  const outputs = (detail.output || []).slice(0, ROOM.outputs);
  if (outputs.length) {
    parts.push("", "<details><summary>Captured output</summary>", "");
    for (const part of outputs) parts.push(span(part.name), "", fenced(within(part.text, ROOM.output)), "");
    parts.push("</details>");
  }
  return `${parts.join("\n")}\n`;
}

/** Make a button that copies a text. The text is made when the button is pressed. */
function copyButton(label, title, text) {
  const button = el("button", { type: "button", class: "copy", text: label, title });
  button.addEventListener("click", () => copy(text(), button, label));
  return button;
}

async function copy(text, button, label) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // For a page from the disk, some browsers copy only selected text.
    done = copySelected(text);
    button.focus();
  }
  if (!done) return copyByHand(text, button);
  button.textContent = "copied";
  setTimeout(() => (button.textContent = label), 1500);
}

const textArea = (text, attributes) =>
  Object.assign(el("textarea", { readonly: true, ...attributes }), { value: text });

function copySelected(text) {
  const area = textArea(text, { class: "unseen", "aria-hidden": "true" });
  document.body.append(area);
  area.select();
  let done = false;
  try {
    done = document.execCommand("copy");
  } catch {
    // The text is shown then, to be copied by hand.
  }
  area.remove();
  return done;
}

/** Show the text, selected, if the browser lets no page copy. */
function copyByHand(text, button) {
  const row = button.parentNode;
  if (row.nextSibling && row.nextSibling.className === "by-hand") row.nextSibling.remove();
  const area = textArea(text, { rows: "12", "aria-label": "to be copied by hand" });
  row.after(
    el(
      "div",
      { class: "by-hand" },
      el("p", { class: "small", text: "This browser lets no page copy: press Ctrl+C." }),
      area,
    ),
  );
  area.select();
}

"""The facts of a rank's training, with sentences on it: they are written as soon as they are known."""

from __future__ import annotations

from everyrank.parity.script.kept import Facts, Kept


class Remarks:
    """What is known of a training, beside its tensors."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self.facts = Facts()

    def write(self) -> None:
        self._kept.write_facts(self.facts)

    def note(self, text: str) -> None:
        """Keep a sentence on what was done to the script."""
        self._add(self.facts.notes, text)

    def find(self, text: str) -> None:
        """Keep a sentence on what is wrong, whatever the size."""
        self._add(self.facts.faults, text)

    def narrow(self, text: str) -> None:
        """Keep a sentence on what cannot be in double."""
        self._add(self.facts.narrow, text)

    def wrote(self, path: str, line: str) -> None:
        """Keep the path of a file that the script writes."""
        if path not in self.facts.written:
            self.facts.written[path] = line
            self.write()

    def _add(self, texts: list[str], text: str) -> None:
        if text not in texts:
            texts.append(text)
            self.write()

"""Moves: what can be done with a subject, in any order, with the reference beside it.

A contract's player has a method for each move. A script is a model and a list of moves with their arguments: plain
data. Three things make scripts: a person who pastes one as a test, a draw of Hypothesis, and the crossings, which
cover the pairs and triples of moves.
"""

from everyrank.suites.moves.law import crossed as crossed
from everyrank.suites.moves.move import NEVER as NEVER
from everyrank.suites.moves.move import move as move
from everyrank.suites.moves.move import only_if as only_if
from everyrank.suites.moves.player import Player as Player

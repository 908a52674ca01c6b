"""RPC agents of one test, and one that stays up from test to test."""

from everyrank.rpc.agents import faulty_agent_missing as faulty_agent_missing

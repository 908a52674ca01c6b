"""Faults on purpose: ``@pytest.mark.faults("rank 1 dies at its 3rd collective")``, as text and on a rank."""

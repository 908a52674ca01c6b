"""Hand-written scripts of each contract, which ``tests/suites/test_generate.py`` plays."""

from tests.scripts import parameter_server, replicate, rpc_optimizer, sharded_optimizer, trainer

SCRIPTS = {
    scripts.subject.contract: scripts
    for scripts in (
        *(trainer.SCRIPTS, replicate.SCRIPTS, parameter_server.SCRIPTS),
        *(rpc_optimizer.SCRIPTS, sharded_optimizer.SCRIPTS),
    )
}

"""A SLURM of this machine alone, on ports and in a folder of its own: no systemd, no accounting.

Its node says that it has 4 cores and 16 GB, as much as the profile's jobs ask for.
"""

import os
import platform
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
MinJobAge=3600
KillWait=20
JobRequeue=0
MailProg=/bin/true
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=16000 Gres=gpu:1 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """What this machine lacks for it; empty where it has all."""
    lacking = [name for name in (*DAEMONS, "sbatch") if not shutil.which(name)]
    if lacking:
        return f"no {lacking[0]} here: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "SLURM's daemons are started as root"


@contextmanager
def up(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which SLURM's commands find the cluster, while it is up."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    host = platform.node().split(".")[0]
    conf = folder / "slurm.conf"
    ports = _free_ports(2)
    conf.write_text(CONF.format(folder=folder, host=host, ports=ports))
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu Count=1 File=/dev/null\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\nConstrainCores=no\n")
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    env = os.environ | {"SLURM_CONF": str(conf)}
    munged = [f"--{option}={folder}/munge.{option.split('-')[0]}" for option in MUNGE_FILES]
    try:
        subprocess.run(["munged", "--force", *munged], check=True)
        for daemon in ("slurmctld", "slurmd"):
            subprocess.run([daemon, "-f", str(conf)], check=True, env=env)
        _wait_until_idle(env)
        yield env
    finally:
        for file in ("slurmd.pid", "slurmctld.pid", "munge.pid"):
            if (folder / file).exists():
                _end(int((folder / file).read_text()))


MUNGE_FILES = ("socket", "key-file", "pid-file", "log-file", "seed-file")


def _free_ports(number: int) -> list[int]:
    taken = [socket.socket() for _ in range(number)]
    for each in taken:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in taken]
    for each in taken:
        each.close()
    return ports


def _wait_until_idle(env: dict[str, str]) -> None:
    for _ in range(100):
        found = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"], env=env, capture_output=True, text=True
        )
        if "idle" in found.stdout:
            return
        time.sleep(0.2)
    raise RuntimeError(f"SLURM does not come up: {found.stdout}{found.stderr}")


def _end(process: int) -> None:
    try:
        os.kill(process, 15)
    except ProcessLookupError:
        return
    for _ in range(50):
        time.sleep(0.1)
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return

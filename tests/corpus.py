"""Inputs worth keeping: each has once led to a crash, a hang or a wrong answer, or could have."""

from __future__ import annotations

import struct

FAR = 2**62
STARTED = (
    b'{"event":"started","rank":0,"time":0.0,"version":1,"world":"virtual","strategy":"ring",'
    b'"workers":2,"ranks":2,"minibatch":4,"seed":1,"metric":"accuracy","higher_is_better":true,'
    b'"target":0.9,"vector_bytes":24}\n'
)
EVALUATED = (
    b'{"event":"evaluated","rank":0,"time":1.0,"training":1.0,"samples":10,"epoch":1.0,'
    b'"seconds":0.0,"results":{"accuracy":0.5}}\n'
)
SPANS = b'{"event":"spans","rank":0,"time":1.0,"kinds":"c",'


def header(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


CORPUS: dict[str, list[bytes]] = {
    "pipes": [
        header(0, 0, -1, -1, 0, 8) + bytes(8),  # the last type, by an index from the end
        header(0, 0, 99, -1, 0, 8) + bytes(8),
        header(0, 0, 0, -1, 0, 7) + bytes(7),
        header(0, 0, 0, -1, 0, -8),
        header(0, 0, 0, -1, 0, FAR),  # waited for ever
        header(0, 0, 0, 0, FAR, 8),
        header(0, 0, 0, 0, 131072, FAR),
        header(0, 0, 0, 8192, 135168, 8),
        header(0, 0, 0, -2, 0, 8),
        header(0, 0, 0, 0, 0, 8),  # the ledger
        header(0, 0, 4, 0, 135169, 8),
        header(0, 0, 1, 0, 135170, 8),  # between two numbers
        header(0, 0, 0),
        b"\xff" * 48,
        b"",
    ],
    "sockets": [
        header(0, 0, 99, 1),  # ended the thread without a word, and the rank waited for ever
        header(0, 0, -1, 1),
        header(0, 0, 0, -1),
        header(0, 0, 0, FAR),
        header(0, 0, 9, 2**63 - 1),
        header(-3, 0, 0, 0),
    ],
    "checkpoints": [
        b"000002/checkpoint.json+\n" + b"[" * 100_000,
        b'000002/checkpoint.json+\n{"format":"regatta checkpoint","version":2,"segment":2,'
        b'"ranks":3,"run":"","sha256":{"/dev/zero":"0"}}',  # has no end
        b'000002/checkpoint.json+\n{"format":"regatta checkpoint","version":2,"segment":1,'
        b'"ranks":3,"run":"","sha256":{}}',
        b"000002/rank-0.json+\n{}",
        b"000002/rank-0.json+\n"  # set an attribute of an object by its name
        b'{"steps":0,"version":8,"optimiser_steps":0.0,"turns":4,"counters":{"version of s'
        b'tripe 0":8},"parts":{},"segment":2,"epochs":1,"time":0.003360134879999999,"pause'
        b'd":0.0,"scores":{"results":{},"best":null,"best_results":{},"since_best":0,"valu'
        b'es":[]},"pace":{"found":1.0,"score":0,"more":0},"samples":32,"audio":null,"score'
        b'd_version":-1,"evaluations":0,"traffic":{"messages":11,"nbytes":372,"computing":'
        b'0.0032,"waiting":4294967296,"dropped":0,"staleness":[],"__class__":-922337203685'
        b'4775808}}',
        b"000002/rank-0.json+\n[]",
        b'000002/rank-0.json+\n{"steps":1e300}',
        b"000002/rank-0.safetensors+\n",
        b"000002/rank-0.safetensors+\n" + struct.pack("<Q", 2**63) + b"{}",
        b"000002/rank-0.safetensors+\n" + struct.pack("<Q", 2) + b"{}",
        b"000002/answer.safetensors+\n" + struct.pack("<Q", 8) + b'{"a":[]}',
        b"best.safetensors-\n",
        b"model.pt-\n\x80\x02cos\nsystem\nq\x00X\x02\x00\x00\x00idq\x01\x85q\x02Rq\x03.",
        b"model.pt-\nPK\x03\x04",
    ],
    "events": [
        STARTED + EVALUATED,
        EVALUATED,
        b"[" * 100_000 + b"\n" + STARTED,
        b'{"event":["started"]}\n' + STARTED,
        b'{"event":"ended","staleness":[]}\n' + STARTED,
        STARTED + EVALUATED.replace(b'"time":1.0', b'"time":Infinity'),
        STARTED + EVALUATED.replace(b'"time":1.0', b'"time":1.7976931348623157e+308'),
        STARTED.replace(b'"ranks":2', b'"ranks":9223372036854775807') + EVALUATED,
        STARTED + SPANS + b'"starts":[-1e9],"ends":[1.0]}\n' + EVALUATED,
        STARTED + EVALUATED.replace(b'"samples":10', b'"samples":' + b"9" * 5000),
        STARTED + EVALUATED.replace(b'"accuracy":0.5', b'"accuracy":NaN'),
        STARTED + EVALUATED.replace(b'"results":{"accuracy":0.5}', b'"results":{}'),
        STARTED.replace(b'"ring"', b'"\\ud800[/bold]\\u001b[2J"') + EVALUATED,
        STARTED.replace(b'"version":1', b'"version":null') + EVALUATED,
        STARTED + SPANS + b'"starts":[-1e300],"ends":[1]}\n',
        STARTED + SPANS + b'"starts":[],"ends":[]}\n',
        STARTED + b'{"event":"usage","rank":0,"time":1.0,"interval":0,"cpu":[],"memory":1}\n',
        (STARTED + b'{"event":"resumed","rank":0,"time":0.5,"segment":1}\n') * 2000,
        STARTED[:40] + STARTED + EVALUATED[:40],
        b"\xff\xfe" + STARTED,
        b"\n\n\n",
        b"",
    ],
    "choices": [
        b'{"segment":0,"rank":0,"recv":[1]}\n',
        b'{"segment":0,"rank":0,"recv":"abc"}\n',
        b'{"segment":0,"rank":0,"recv":[-1]}\n',  # would be taken from anyone, for ever
        b'{"segment":0,"rank":0,"poll":[1.5]}\n',
        b'{"segment":[],"rank":{},"recv":[1]}\n',
        b'{"segment":-1,"rank":0,"stop":[1]}\n',
        b'{"segment":0,"rank":0}\n',
        b"[1]\n3\nnull\n",
        b"[" * 100_000 + b"\n",
        b'{"segment":0,"rank":0,"recv":[1]',
        b"\xff\n",
        b"",
    ],
    "run": [
        b"{}",
        b"[]",
        b"3",
        b"[" * 100_000,
        b'{"regatta_run":1}',
        b'{"regatta_run":1,"recipe":"teacher","world":"virtual","run":{},"stops":[],'
        b'"environment":{}}',
        b'{"regatta_run":1,"recipe":"/etc/passwd:x","world":"virtual","run":{"task":{"name":[]}},'
        b'"stops":[],"environment":{}}',
        b'{"regatta_run":1,"recipe":"x\\u0000.py:x","world":"virtual","run":{"task":'
        b'{"name":"mine"}},"stops":[],"environment":{}}',
        b'{"regatta_run":1,"recipe":"teacher","world":"virtual","run":{"workers":true,'
        b'"stop":[1]},"stops":[[0]],"environment":{}}',
        b'{"regatta_run":1,"recipe":"teacher","world":"virtual","run":{"minibatch":1e400},'
        b'"stops":[],"environment":{}}',
        b'{"regatta_run":1,"recipe":"teacher","world":"virtual","run":{"task":{"name":"teacher",'
        b'"hidden":{"a":1}}},"stops":[],"environment":{}}',
    ],
    "race": [
        b'{"regatta_race":3,"recipe":"teacher","lanes":[],"seeds":[0]}',
        b'{"regatta_race":3,"recipe":"teacher","lanes":[{"spec":"ring","workers":2,"minibatch":8}],'
        b'"seeds":["../../../home"]}',  # a folder that would be deleted
        b'{"regatta_race":3,"recipe":"teacher","lanes":[{"spec":"../..","workers":2,'
        b'"minibatch":8}],"seeds":[0]}',
        b'{"regatta_race":3,"recipe":"teacher","lanes":[3],"seeds":[0]}',
        b'{"regatta_race":[],"lanes":{}}',
    ],
    "lock": [b"", b"{}", b'{"command":"x","pid":0,"host":"vm","since":1e300}', b"[" * 10_000,
             b'{"command":"x","pid":-1,"host":"vm","since":-1e300}'],
    "set": [
        b"workers=1e400",
        b"workers=" + b"9" * 5000,
        b"workers=1e18",
        b"stop.epochs=nan",
        b"evaluation.every=nan",
        b"evaluation.every=1e-320",
        b"optimiser.lr=nan",
        b"__class__=x",
        b"task.__class__.name=x",
        b"cluster.jitter=1e300",
        b"cluster.faults=slow rank=1e9 factor=nan from=inf to=-inf",
        b"optimiser.lr=" + b"1," * 50_000,
        b"x" * 100_000 + b"=1",
        b"task=" + b"x" * 100_000,
        b"task.hidden=" + b"9," * 30_000,
        b"strategy=averaging:period=" + b"1" * 400,
        b"start.run=\xff\xfe",
        b"=",
        b"",
    ],
    "specs": [
        b"averaging:period=1e400", b"averaging:drop=nan", b"averaging:", b":", b"averaging::",
        b"averaging:period", b"averaging:period=", b"averaging:=3", b"averaging:jobs=1e18",
        b"all-reduce:compress=top-k/nan",
        b"all-reduce:compress=top-k/", b"all-reduce:compress=power-sgd/1e9", b"ring@0", b"ring@-1",
        b"ring@" + b"9" * 5000, b"parameter-server:servers=1e18", b"elastic:alpha=inf",
        b"pipeline:micro=0", b"ring:chunks=-1", b"single:" + b"," * 10_000,
        b"x" * 100_000, b"ring@" + b"x" * 99_999,
    ],
    "clusters": [
        b"yaml\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        b"c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
        b"e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n"
        b"latency: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n",  # a message of gigabytes
        b"yaml\nlatency: &a [*a]\n",
        b"yaml\n1: 2\n",
        b"yaml\n? [a]\n: 1\n",
        b"yaml\n" + b"[" * 20_000,
        b"yaml\nlatency: 2024-13-45\n",
        b"yaml\n!!python/object/apply:os.system [id]\n",
        b"json\n" + b"[" * 100_000,
        b'json\n{"curve": {}}',
        b'json\n{"per_host": 0.5}',
        b'json\n{"jitter": 1e300}',
        b'json\n{"jitter": 1e300, "jitter_shape": "normal"}',
        b'json\n{"uneven": 1e300}',
        b'json\n{"pauses": 1, "pause_seconds": 5e-324}',
        b'json\n{"pauses": 1, "pause_seconds": Infinity}',  # one by nothing
        b'json\n{"per_host": 1e300}',
        b'json\n{"host": [{"name": "a", "count": 1000000000000000000}]}',  # all in a list
        b'json\n{"host": [{"name": "a", "devices": ["999999999999 v100"]}]}',
        b'json\n{"host": [{"name": "a", "devices": 3, "groups": [1]}], "link": {"": []}}',
        b"yaml\nhost:\n- name: a\n  1: 2\n",
        b"yaml\n" + b"- " * 20_000,
        b"toml\n" + b"a=" + b"[" * 50_000,
        b"toml\n" + b"a." * 20_000 + b"b=1",
        b"toml\nlatency = 0x" + b"f" * 10_000,
        b"toml\nfaults = [\"slow rank=1 factor=1e300 from=0 to=1e300\"]",
        b"toml\n\xff",
    ],
}  # fmt: skip

# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""benchmarks/compare.py: what its scenarios send, to which servers, and which goals it finds met."""

import http.server
import json
import shutil
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CONDITIONS = ("tls", "traces", "pattern", "forward", "restricted", "scraped")


@pytest.fixture(scope="module")
def modules():
    """`modules(name)`: a module of the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield import_module


@pytest.fixture
def scenario(modules):
    return modules("scenarios").Scenario


@pytest.fixture
def certificate(modules, monkeypatch):
    """No program is started to make a certificate: its files are empty."""

    def write(folder):
        for name in ("cert.pem", "key.pem"):
            Path(folder, name).touch()

    monkeypatch.setattr(modules("conditions"), "write_certificate", write)


@pytest.fixture
def opts():
    return SimpleNamespace(post={}, wrk="wrk", window=1.0, perf_analyzer="perf_analyzer", python="python")


@pytest.fixture
def servers(modules):
    """Two servers that are not started."""
    make = modules("servers").Server
    command = "{name} --http-port={http} --grpc-port={grpc} --metrics-port={metrics} --model-repository={models}"
    return [
        make(name, command.replace("{name}", name), [1, 2, 3], "/models", "/", "/tmp") for name in ("ours", "theirs")
    ]


def options_of_wrk(argv):
    return Path(argv[argv.index("-s") + 1]).read_text(), argv[-1]


def test_every_scenario_says_whether_it_repeats_one_request(modules):
    """A preset is a list of groups, and each scenario in them is understood."""
    scenarios = modules("scenarios")
    for text in (text for preset in scenarios.PRESETS.values() for text in preset):
        for sc in scenarios.groups_of([text])[0]:
            assert {"repeat", "vary"} & set(sc.text.split(",")), sc.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("add_sub,http,c1", "say repeat .* or vary"),
        ("add_sub,http,repeat,vary", "second word 'vary'"),
        ("add_sub,http,repeat,tls,traces", "second word 'traces'"),
        ("add_sub,http,repeat,gzip", "unknown or second word 'gzip'"),
        ("sequence_sum,http,c32,vary", "vary is for"),
        ("add_sub,grpc,repeat,wrk", "wrk speaks HTTP only"),
        ("add_sub,http,repeat,pygrpc", "pygrpc speaks gRPC only"),
        ("add_sub,grpc,repeat,restricted", "perf_analyzer sends no metadata"),
    ],
)
def test_a_scenario_that_cannot_be_measured_is_refused(scenario, text, problem):
    with pytest.raises(SystemExit, match=problem):
        scenario(text)


@pytest.mark.parametrize("model", ["identity", "add_sub", "texts"])
def test_varied_requests_differ_each_from_each(modules, scenario, model):
    requests = modules("payloads").requests_of(scenario(f"{model},http,vary"))
    assert len(requests) == 1999
    assert len({json.dumps(inputs) for inputs in requests}) == 1999


def test_varied_texts_and_shapes_have_all_sizes(modules, scenario):
    for model in ("identity", "texts"):
        requests = modules("payloads").requests_of(scenario(f"{model},http,vary"))
        values = [inputs[0][1] for inputs in requests]
        sizes = [len(v[0]) if model == "texts" else len(v) for v in values]
        assert sorted(sizes) == list(range(1, 2000))


def test_repeated_texts_are_as_long_as_varied_ones_in_the_mean(modules, scenario):
    ((inputs),) = modules("payloads").requests_of(scenario("texts,http,repeat"))
    assert len(inputs[0][1][0]) == 1000


def test_texts_and_numbers_survive_binary_and_json(modules):
    kserve = modules("kserve")
    for values in ([1.5, -2.0], ["", "a", "\u00fc"]):
        body, headers = kserve.request([("A", values)])
        head = int(headers["Inference-Header-Content-Length"])
        (described,) = json.loads(body[:head])["inputs"]
        assert described["parameters"]["binary_data_size"] == len(body) - head
        answer = body.replace(b'"inputs"', b'"outputs"')
        assert kserve.outputs({"Inference-Header-Content-Length": str(head + 1)}, answer) == {"A": values}
        body, _ = kserve.request([("A", values)], as_json=True)
        assert kserve.outputs({}, body.replace(b'"inputs"', b'"outputs"')) == {"A": values}


@pytest.mark.parametrize("words", ["identity,http,vary,wrk", "texts,http,vary,json", "add_sub,http,vary,wrk,forward"])
def test_wrk_gets_another_body_each_time(modules, scenario, servers, opts, tmp_path, words):
    """The script reads bodies from one file, by lengths from another one, and says each request's own headers."""
    sc = scenario(words)
    script, url = options_of_wrk(modules("generators").command(sc, servers[0], opts, str(tmp_path)))
    assert url == f"http://127.0.0.1:1/v2/models/{sc.model}/infer"
    bodies, lines = (next(tmp_path.glob(f"bodies-*.{suffix}")) for suffix in ("bin", "txt"))
    assert str(bodies) in script
    assert str(lines) in script
    assert ('wrk.headers["x-user-name"] = "somebody"' in script) == (sc.condition == "forward")
    contents, at, found = bodies.read_bytes(), 0, set()
    for line in lines.read_text().splitlines():
        length, head = map(int, line.split())
        body = contents[at : at + length]
        at += length
        assert "inputs" in json.loads(body[: head or length])
        assert bool(head) != sc.json
        found.add(body)
    assert at == len(contents)
    assert len(found) == 1999


def test_wrk_repeats_one_body(modules, scenario, servers, opts, tmp_path):
    sc = scenario("add_sub,http,repeat,json")
    script, _ = options_of_wrk(modules("generators").command(sc, servers[0], opts, str(tmp_path)))
    assert 'wrk.headers["Content-Type"] = "application/json"' in script
    assert "function request" not in script


@pytest.mark.usefixtures("certificate")
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_condition_has_a_server_of_its_own(modules, scenario, servers, tmp_path, condition, protocol):
    """It has the plain one's command, further options, and other ports; what these name is there."""
    client = "wrk" if protocol == "http" else "pygrpc"
    group = [scenario(f"identity,{protocol},vary,{client}{word},first") for word in ("", f",{condition}")]
    plain, special = modules("turns").entries_of(group, servers, str(tmp_path))
    assert plain.server is servers[0]
    assert special.server.name == "ours"
    added = special.server.command.split("--model-repository=/models ")[1].split()
    assert added == modules("conditions").options_of(group[1], str(tmp_path))
    assert {special.server.http, special.server.grpc, special.server.metrics}.isdisjoint({1, 2, 3})
    assert special.server.scheme == ("https" if (condition, protocol) == ("tls", "http") else "http")
    files = [Path(option.split("=", 1)[1]) for option in added if option.split("=", 1)[1].startswith(str(tmp_path))]
    assert all(file.exists() for file in files)
    assert len(files) == {"tls": 2, "scraped": 1}.get(condition, 0)


def test_scenarios_with_the_same_options_share_a_server(modules, scenario, servers, tmp_path):
    group = [scenario("add_sub,http,repeat,traces"), scenario("identity,http,vary,traces,first")]
    first, second, third = modules("turns").entries_of(group, servers, str(tmp_path))
    assert first.server is third.server
    assert (second.server.name, second.server is first.server) == ("theirs", False)


@pytest.mark.usefixtures("certificate")
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_requests_say_what_their_condition_asks_for(modules, scenario, servers, opts, tmp_path, protocol):
    """The header of a restricted API, one that is forwarded, the certificate of a server with TLS."""
    client = "wrk" if protocol == "http" else "pygrpc"
    said = {}
    for condition in ("tls", "forward", "restricted", "pattern"):
        sc = scenario(f"add_sub,{protocol},repeat,{client},{condition}")
        entry = modules("turns").entries_of([sc], servers, str(tmp_path))[0]
        argv = modules("generators").command(sc, entry.server, opts, str(tmp_path))
        said[condition] = "\n".join(options_of_wrk(argv)) if client == "wrk" else " ".join(argv)
    assert ("https://" if protocol == "http" else "--root-cert=") in said["tls"]
    assert "somebody" in said["forward"]
    assert ("bench-key" if protocol == "http" else "triton-grpc-protocol-bench-key=secret") in said["restricted"]
    assert not any(word in said["pattern"] for word in ("somebody", "secret", "https", "--root-cert"))


def test_metrics_and_statistics_are_read_until_the_end(modules):
    """A reading of both counts; an answer that is no success is a problem."""
    seen, status = [], [200]

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            seen.append(self.path)
            self.send_response(status[0])
            self.send_header("Content-Length", "0")
            self.end_headers()
            if len(seen) >= 4:
                enough.set()

        def log_message(self, *args):
            pass

    enough = threading.Event()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        address = SimpleNamespace(http=server.server_port, metrics=server.server_port)
        scraper = modules("scraping").Scraper(address)
        scraper.start()
        assert enough.wait(60)
        assert scraper.end() is None
        assert seen[:4] == ["/metrics", "/v2/models/stats"] * 2
        status[0] = 503
        scraper = modules("scraping").Scraper(address)
        scraper.start()
        scraper.join(60)
        assert scraper.end() == "/metrics answered 503"
        server.shutdown()
        serving.join()


def test_every_goal_is_measured_by_one_preset(modules):
    """What is divided by another scenario is measured in turns with it."""
    groups = [[sc.text for sc in group] for group in modules("scenarios").groups_of(["preset:requests"])]
    for goal in modules("goals").GOALS:
        (group,) = [texts for texts in groups if goal.scenario in texts]
        assert not goal.beside or goal.beside in group


def test_goals_are_met_by_medians_of_turns(modules, monkeypatch):
    """A rate may be higher, all else lower; what has no figures is not measured."""
    goals = modules("goals")
    Goal = goals.Goal
    monkeypatch.setattr(
        goals,
        "GOALS",
        [
            Goal("a", "rate", goals.OTHER_SERVER, 2, 3),
            Goal("a", "cpu", goals.OTHER_SERVER, 0.5, None),
            Goal("b", "cpu", "a", 1.5, 1.2),
            Goal("a", "cpu_below", None, 9, 7),
            Goal("b", "p50", goals.OTHER_SERVER, 1, None),
            Goal("b", "rate", "a", None, None),
            Goal("c", "rate", "a", 1, 1),
        ],
    )
    ours = [{"rate": rate, "cpu": 6.0, "cpu_below": 8.0} for rate in (10, 30, 20)]
    theirs = [{"rate": 10, "cpu": 10.0}] * 3
    other = [{"rate": 10, "cpu": 12.0}, {"error": "hung"}, {"rate": 10, "cpu": 3.0}]
    rows = goals.rows_of({("a", "ours"): ours, ("a", "theirs"): theirs, ("b", "ours"): other}, ["ours", "theirs"])
    assert [[row[0], row[2], row[3], row[-1]] for row in rows] == [
        ["a", "theirs", "2.00 [1.00..3.00]", "yes"],
        ["a", "theirs", "0.60 [0.60..0.60]", "NO"],
        ["b", "a", "1.25 [0.50..2.00]", "yes"],
        ["a", "-", "8.00 [8.00..8.00]", "yes"],
        ["b", "theirs", "-", "not measured"],
        ["b", "a", "0.75 [0.50..1.00]", "-"],
    ]


@pytest.mark.processes
def test_servers_under_conditions_are_measured_in_turns(tmp_path):
    """For real, without the programs that are not of this project: over TLS, restricted, with headers forwarded."""
    for model in ("identity", "texts"):
        shutil.copytree(BENCHMARKS / "models" / model, tmp_path / "models" / model)
    (tmp_path / "logs").mkdir()
    command = f"{sys.executable} -m pyruntime serve --model-repository={{models}}"
    command += "".join(f" --{name}-address=127.0.0.1 --{name}-port={{{name}}}" for name in ("http", "grpc", "metrics"))
    scenarios = ["texts,grpc,c2,vary,pygrpc"]
    scenarios += [f"identity,grpc,c2,vary,pygrpc,{condition}" for condition in ("tls", "forward", "restricted")]
    argv = [sys.executable, BENCHMARKS / "compare.py", f"--server=ours={command}", f"--models={tmp_path / 'models'}"]
    argv += [f"--scenario={' + '.join(scenarios)}", "--repeats=1", "--window=0.1", f"--logs={tmp_path / 'logs'}"]
    argv += [f"--json={tmp_path / 'runs.json'}", "--start-timeout=600"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads((tmp_path / "runs.json").read_text())
    assert [run["scenario"] for run in runs] == scenarios, done.stderr
    assert all(run["rate"] > 0 and run["cpu_host"] > 0 for run in runs), runs

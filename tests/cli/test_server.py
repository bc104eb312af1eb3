"""The language server, driven by a real client over its standard streams."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from editor_client import CLEAN, WORKER, Editor, in_an_editor
from lsprotocol import types


async def _session(*options: str) -> tuple[int, str]:
    """Start a server, and end it as the protocol wants; its exit status and standard error."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest_gradguard", "server", *options),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    assert process.stdin
    assert process.stdout
    for number, method in enumerate(("initialize", "shutdown", "exit"), 1):
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if method != "exit":
            message["id"] = number
        if method == "initialize":
            message["params"] = {"processId": None, "rootUri": None, "capabilities": {}}
        body = json.dumps(message).encode()
        process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        if "id" in message:  # an answer comes, which is waited for
            head = (await process.stdout.readuntil(b"\r\n\r\n")).decode()
            (length,) = re.findall(r"Content-Length: (\d+)", head)
            assert json.loads(await process.stdout.readexactly(int(length)))["id"] == number
    _, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.parametrize("options", [(), ("--stdio",)])
def test_it_ends_quietly_with_status_0_as_the_protocol_wants(options: tuple[str, ...]) -> None:
    assert asyncio.run(asyncio.wait_for(_session(*options), 60)) == (0, "")


def message(content: Any) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def request(number: Any, method: Any, version: str = "2.0", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": version, "id": number, "method": method, **params}


INITIALIZE = request(
    1, "initialize", params={"processId": None, "rootUri": None, "capabilities": {}}
)
END = message(request("last", "shutdown")) + message({"jsonrpc": "2.0", "method": "exit"})


def told(data: bytes) -> tuple[int, list[dict[str, Any]], str]:
    """The exit status of a server that gets `data`, its answers, and its standard error."""
    command = [sys.executable, "-m", "pytest_gradguard", "server"]
    done = subprocess.run(command, input=data, capture_output=True, timeout=60)
    parts = done.stdout.split(b"Content-Length: ")[1:]
    answers = [json.loads(part.partition(b"\r\n\r\n")[2]) for part in parts]
    return done.returncode, [one for one in answers if "id" in one], done.stderr.decode()


def test_what_cannot_be_understood_is_answered_and_the_next_request_too() -> None:
    hover = "textDocument/hover"
    odd = {
        (2, -32602): request(2, hover, params={"position": 3}),
        ("three", -32602): request("three", "textDocument/codeAction", params="no"),
        (4, -32602): request(4, hover),
        (5, -32601): request(5, "no/such"),
        (6, -32600): request(6, ["initialize"], params={}),
        (7, -32600): request(7, "shutdown", version="1.0"),
        (8, -32600): {"id": 8, "method": hover},
        (None, -32700): b"{nope",
    }
    data = b"".join(map(message, (INITIALIZE, *odd.values())))
    status, answers, _ = told(data + END)
    assert [(one["id"], one.get("error", {}).get("code")) for one in answers] == [
        (1, None),
        *odd,
        ("last", None),
    ]
    assert "params.position" in answers[1]["error"]["message"]
    assert status == 0


@pytest.mark.parametrize("uri", ["file:///no/such.py", "file:///", "untitled:1", "file:///%00.py"])
def test_a_file_that_cannot_be_read_has_no_hover_and_no_action(uri: str) -> None:
    place = {"line": 0, "character": 0}
    where = {"textDocument": {"uri": uri}}
    span = {"range": {"start": place, "end": place}, "context": {"diagnostics": []}}
    asked = (
        request(2, "textDocument/hover", params={**where, "position": place}),
        request(3, "textDocument/codeAction", params={**where, **span}),
    )
    status, answers, said = told(b"".join(map(message, (INITIALIZE, *asked))) + END)
    assert [one["result"] for one in answers[1:]] == [None, [], None]
    assert (status, said) == (0, "")


def test_requests_before_initialize_and_after_shutdown_are_refused() -> None:
    end = message({"jsonrpc": "2.0", "method": "exit"})
    hover = {"textDocument": {"uri": "file:///a.py"}, "position": {"line": 0, "character": 0}}
    early = message(request(2, "textDocument/hover", params=hover))
    late = message(request(3, "shutdown"))
    status, answers, _ = told(early + message(INITIALIZE) + END.removesuffix(end) + late + end)
    assert [(one["id"], one.get("error", {}).get("code")) for one in answers] == [
        (2, -32002),
        (1, None),
        ("last", None),
        (3, -32600),
    ]
    assert status == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"Content-Length: abc\r\n\r\n{}", "'Content-Length: abc' is not a length"),
        (b"Content-Length: -1\r\n\r\n{}", "'Content-Length: -1' is not a length"),
        (b"Content-Type: json\r\n\r\n{}", "a message has no Content-Length"),
        (b"hel\x1blo\n", "'hel\\x1blo' is not a header"),
    ],
)
def test_broken_headers_end_it_with_one_line(data: bytes, reason: str) -> None:
    status, answers, said = told(message(INITIALIZE) + data)
    assert (status, [one["id"] for one in answers]) == (2, [1])
    assert said == f"gradguard server: error: standard input breaks the protocol: {reason}\n"


def test_headers_may_be_written_in_other_ways() -> None:
    loose = message(INITIALIZE).replace(b"Content-Length: ", b"content-length:", 1)
    typed = b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n" + loose
    status, answers, said = told(typed.replace(b"\r\n", b"\n") + END)
    assert (status, [one["id"] for one in answers], said) == (0, [1, "last"], "")


def test_findings_come_and_go_as_one_types(tmp_path):
    (tmp_path / "train.py").write_text(CLEAN, encoding="utf-8")
    (tmp_path / "other.py").write_text(WORKER, encoding="utf-8")

    async def use(one: Editor) -> None:
        await one.until(lambda codes: codes == {"other.py": ["GG201"]})  # nothing is open yet
        one.open("train.py", CLEAN)
        one.type("train.py", WORKER)
        await one.until(lambda codes: codes.get("train.py") == ["GG201"])
        (found,) = one.published["train.py"]
        assert (found.range.start, found.range.end) == (
            types.Position(5, 11),
            types.Position(5, 39),
        )
        assert found.source == "gradguard"
        assert found.severity == types.DiagnosticSeverity.Warning
        assert found.code_description.href.endswith("/pitfalls/gg201.md")
        assert found.related_information[0].location.range.start.line == 8
        one.type("train.py", CLEAN)
        await one.until(lambda codes: codes == {"other.py": ["GG201"]})
        one.type("train.py", WORKER)
        await one.until(lambda codes: "train.py" in codes)
        one.close("train.py")  # unsaved: the file counts again
        await one.until(lambda codes: codes == {"other.py": ["GG201"]})

    in_an_editor(tmp_path, use)
    assert (tmp_path / "train.py").read_text("utf-8") == CLEAN


def test_what_is_not_saved_counts_in_other_files_too(tmp_path):
    work, call = WORKER.split("\n\n\nresults")
    call = f"from joblib import Parallel, delayed\nfrom helpers import work\n\nresults{call}"
    (tmp_path / "helpers.py").write_text(work.replace(', device="cuda"', "") + "\n", "utf-8")
    (tmp_path / "train.py").write_text(call, "utf-8")

    async def use(one: Editor) -> None:
        one.open("helpers.py", work + "\n")
        await one.until(lambda codes: codes == {"helpers.py": ["GG201"]})

    in_an_editor(tmp_path, use)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_columns_are_counted_as_the_client_counts_them(tmp_path, encoding):
    text = WORKER.replace("return torch", "'🐍'; return torch")
    line = next(line for line in text.splitlines() if "cuda" in line)
    before = line[: line.index("torch")]
    column = {
        "utf-8": len(before.encode()),
        "utf-16": len(before.encode("utf-16-le")) // 2,
        "utf-32": len(before),
    }[encoding]
    (tmp_path / "train.py").write_text(text, "utf-8")

    async def use(one: Editor) -> None:
        one.open("train.py", text)
        await one.until(lambda codes: codes == {"train.py": ["GG201"]})
        (found,) = one.published["train.py"]
        assert found.range.start.character == column

    in_an_editor(tmp_path, use, encoding)


def test_hovers_explain(tmp_path):
    text = WORKER + "x = 1  # noqa: GG103\n"
    (tmp_path / "train.py").write_text(text, "utf-8")

    async def use(one: Editor) -> None:
        one.open("train.py", text)
        await one.until(lambda codes: codes == {"train.py": ["GG201"]})
        said = {}
        for line, column in ((5, 15), (9, 18), (0, 2)):
            hover = await one.client.text_document_hover_async(
                types.HoverParams(
                    types.TextDocumentIdentifier(one.uri("train.py")), types.Position(line, column)
                )
            )
            said[line] = None if hover is None else hover.contents.value
        assert said[5].startswith("**GG201 cuda-init-in-worker**")
        assert said[9].startswith("**GG103 backward-through-worker-result**")
        assert "How to fix it" in said[5]
        assert said[0] is None

    in_an_editor(tmp_path, use)


def test_a_broken_configuration_is_a_diagnostic_of_its_file(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.gradguard]\nselect = 3\n", "utf-8")
    (tmp_path / "train.py").write_text(WORKER, "utf-8")

    async def use(one: Editor) -> None:
        await one.until(lambda codes: "pyproject.toml" in codes)
        (found,) = one.published["pyproject.toml"]
        assert "select" in found.message

    in_an_editor(tmp_path, use)


def test_without_pygls_one_line_says_what_to_install():
    program = (
        "import sys; sys.modules['pygls'] = None\n"
        "from pytest_gradguard.cli import main; sys.exit(main(['server']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "pip install 'pytest-gradguard[lsp]'" in line

"""A Hub in memory, on 127.0.0.1, for the unmodified huggingface_hub client: models, commits, LFS, refs, downloads."""

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_writeTOKENthatNobodyMaySee"
READ_TOKEN = "hf_readTOKENthatNobodyMaySee"
CUT = "cut"  # a fault that closes the connection in the middle of a request's body
Tree = dict[str, "File"]


class Answer(Exception):
    """A reply that ends a request early."""

    def __init__(self, status: int, message: str, code: str = "", body: Any = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code
        self.body = {"error": message} if body is None else body


@dataclass
class File:
    """A file of a commit."""

    content: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        """Git's name of the content: of an LFS file its sha256, as the client compares it with that."""
        if self.lfs:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()


@dataclass
class Repo:
    """A model repository: commits by name, and the refs that point to them."""

    private: bool
    commits: dict[str, Tree] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pulls: dict[str, str] = field(default_factory=dict)

    def commit(self, tree: Tree, message: str) -> str:
        """Store a tree; its commit's name."""
        oid = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits[oid], self.messages[oid] = tree, message
        return oid

    def resolve(self, revision: str) -> str:
        """A branch, tag, pull request or commit → the commit's name."""
        for refs in (self.branches, self.tags, self.pulls, {oid: oid for oid in self.commits}):
            if revision in refs:
                return refs[revision]
        raise Answer(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def files(self, revision: str = "main") -> Tree:
        """The files at a revision."""
        return self.commits[self.resolve(revision)]


@dataclass
class LocalHub:
    """The state of the Hub. `tokens` maps a token to "write" or "read"; `fault(method, path)` may name a status to
    answer with, or CUT, before a request is looked at."""

    endpoint: str = ""
    tokens: dict[str, str] = field(default_factory=dict)
    repos: dict[str, Repo] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    fault: Callable[[str, str], int | str | None] = lambda method, path: None

    def create(self, name: str, private: bool = False) -> Repo:
        """A new repository, with the one file that the Hub puts there."""
        repo = Repo(private)
        repo.branches["main"] = repo.commit(
            {".gitattributes": File(b"*.safetensors filter=lfs\n", False)}, "initial commit"
        )
        self.repos[name] = repo
        return repo


class Handler(BaseHTTPRequestHandler):
    """One request; `hub` is set by :func:`local_hub`."""

    hub: LocalHub
    protocol_version = "HTTP/1.1"
    wbufsize, disable_nagle_algorithm = -1, True  # headers and body in one packet: nobody waits for acknowledgements

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        self.hub.requests.append((self.command, path))
        fault = self.hub.fault(self.command, path)
        length = int(self.headers.get("Content-Length", 0))
        if fault == CUT:
            self.rfile.read(min(length, 1000))
            self.close_connection = True
            return
        body = self._chunks() if "chunked" in self.headers.get("Transfer-Encoding", "") else self.rfile.read(length)
        try:
            if fault is not None:
                raise Answer(int(fault), f"fault {fault}")
            reply = self._route(path, url.path, {k: v[0] for k, v in parse_qs(url.query).items()}, body)
        except Answer as answer:
            headers = {"X-Error-Message": str(answer)} | ({"X-Error-Code": answer.code} if answer.code else {})
            self._send(answer.status, json.dumps(answer.body).encode(), headers)
            return
        if isinstance(reply, tuple):
            self._send(200, *reply)
        else:
            self._send(200, json.dumps(reply).encode(), {"Content-Type": "application/json"})

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # names of the standard library's

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _role(self) -> str | None:
        """What the request's token may do; None without one."""
        header = self.headers.get("Authorization")
        if header is None:
            return None
        role = self.hub.tokens.get(header.removeprefix("Bearer "))
        if role is None:
            raise Answer(401, "Invalid credentials in Authorization header")
        return role

    def _repo(self, name: str, write: bool = False) -> Repo:
        """A repository that the request may read, or write."""
        role, repo = self._role(), self.hub.repos.get(name)
        if repo is None or (repo.private and role is None):
            raise Answer(404 if role else 401, "Repository not found", "RepoNotFound")
        if write and role != "write":
            raise Answer(403 if role else 401, "You don't have the rights to write here")
        return repo

    def _route(self, path: str, raw: str, query: dict[str, str], body: bytes) -> Any:
        """The reply: JSON, or (bytes, headers)."""
        if path.startswith("/lfs/"):
            return self._lfs_object(path.removeprefix("/lfs/"), body)
        if path == "/api/whoami-v2":
            return {"name": "owner", "auth": {"accessToken": {"role": self._role()}}}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            last = unquote(raw.strip("/").split("/")[5]) if len(parts) > 5 else "main"
            return self._model("/".join(parts[2:4]), parts[4] if len(parts) > 4 else "revision", last, query, body)
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._lfs_batch(path[1:].removesuffix(".git/info/lfs/objects/batch"), json.loads(body))
        if len(parts) >= 5 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), unquote(raw.strip("/").split("/")[3]), "/".join(parts[4:]))
        raise Answer(404, f"nothing at {path}")

    def _create(self, fields: dict[str, Any]) -> Any:
        role, name = self._role(), f"{fields['organization']}/{fields['name']}"
        url = {"url": f"{self.hub.endpoint}/{name}"}
        if role != "write":
            raise Answer(403 if role else 401, "You don't have the rights to create a model here")
        if name in self.hub.repos:
            raise Answer(409, "You already created this model repo", body=url)
        self.hub.create(name, private=fields.get("visibility") == "private")
        return url

    def _model(self, name: str, verb: str, revision: str, query: dict[str, str], body: bytes) -> Any:
        """/api/models/NAME/VERB/REVISION."""
        repo = self._repo(name, write=verb in ("preupload", "commit", "branch", "tag"))
        if verb == "revision":
            oid = repo.resolve(revision)
            files = [{"rfilename": path} for path in repo.commits[oid]]
            return {"id": name, "modelId": name, "sha": oid, "private": repo.private, "siblings": files}
        if verb == "refs":
            kinds = {"branches": ("heads", repo.branches), "tags": ("tags", repo.tags)}
            refs = {
                kind: [{"name": n, "ref": f"refs/{r}/{n}", "targetCommit": oid} for n, oid in items.items()]
                for kind, (r, items) in kinds.items()
            }
            return {**refs, "converts": []}
        if verb == "tree":
            return [
                {"type": "file", "path": path, "oid": file.oid, "size": len(file.content)}
                for path, file in repo.files(revision).items()
            ]
        if verb == "preupload":
            return {"files": [self._mode(repo, revision, file) for file in json.loads(body)["files"]]}
        if verb == "commit":
            return self._commit(name, repo, revision, [json.loads(line) for line in body.splitlines()], query)
        if verb in ("branch", "tag"):
            return self._ref(repo, verb, revision, json.loads(body))
        raise Answer(404, f"nothing at {verb}")

    def _mode(self, repo: Repo, revision: str, file: dict[str, Any]) -> dict[str, Any]:
        """How a file travels, and its name on the Hub if it is there."""
        there = repo.files(revision).get(file["path"])
        mode = "lfs" if file["path"].endswith(".safetensors") else "regular"
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": there.oid if there else None}

    def _ref(self, repo: Repo, kind: str, name: str, fields: dict[str, Any]) -> Any:
        """Make a branch NAME, or a tag at the revision NAME."""
        refs, start = (repo.branches, fields.get("startingPoint", "main")) if kind == "branch" else (repo.tags, name)
        new = name if kind == "branch" else fields["tag"]
        if new in refs:
            raise Answer(409, f"{kind} {new} exists already")
        refs[new] = repo.resolve(start)
        return {}

    def _commit(self, name: str, repo: Repo, revision: str, lines: list[dict[str, Any]], query: dict[str, str]) -> Any:
        """Apply a commit's lines to the tree of a branch, all or none."""
        header, parent = lines[0]["value"], repo.resolve(revision)
        if header.get("parentCommit", parent) != parent:
            raise Answer(412, "A commit has happened since. Please refresh and try again.")
        tree = dict(repo.commits[parent])
        for line in lines[1:]:
            kind, value = line["key"], line["value"]
            if kind == "deletedFile":
                del tree[value["path"]]
            elif kind == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    raise Answer(400, f"{value['path']} was not uploaded")
                tree[value["path"]] = File(self.hub.objects[value["oid"]], True)
            else:
                tree[value["path"]] = File(base64.b64decode(value["content"]), False)
        oid = repo.commit(tree, header["summary"])
        url = {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{name}/commit/{oid}"}
        if query.get("create_pr") == "1":
            number = len(repo.pulls) + 1
            repo.pulls[f"refs/pr/{number}"] = oid
            return {**url, "pullRequestUrl": f"{self.hub.endpoint}/{name}/discussions/{number}"}
        repo.branches[revision] = oid
        return url

    def _lfs_batch(self, name: str, fields: dict[str, Any]) -> Any:
        """Where to put the objects that are not there yet."""
        self._repo(name, write=True)
        objects = []
        for item in fields["objects"]:
            href = f"{self.hub.endpoint}/lfs/{item['oid']}"
            actions = {"upload": {"href": href}, "verify": {"href": f"{href}/verify"}}
            objects.append(item if item["oid"] in self.hub.objects else {**item, "actions": actions})
        return {"transfer": "basic", "objects": objects}

    def _lfs_object(self, oid: str, body: bytes) -> Any:
        """Take an object if it is whole; or say whether it is there."""
        if self.command == "PUT":
            if hashlib.sha256(body).hexdigest() != oid:
                raise Answer(400, "the content is not what its name says")
            self.hub.objects[oid] = body
        elif oid.removesuffix("/verify") not in self.hub.objects:
            raise Answer(404, "no such object")
        return {}

    def _resolve(self, name: str, revision: str, path: str) -> Any:
        """A file's bytes, with the headers that the client's cache reads."""
        repo = self._repo(name)
        oid = repo.resolve(revision)
        file = repo.commits[oid].get(path)
        if file is None:
            raise Answer(404, f"{path} does not exist", "EntryNotFound")
        headers = {"X-Repo-Commit": oid, "ETag": f'"{file.oid}"'}
        if file.lfs:
            headers |= {"X-Linked-ETag": f'"{file.oid}"', "X-Linked-Size": str(len(file.content))}
        return file.content, headers


@contextmanager
def local_hub(**tokens: str) -> Iterator[LocalHub]:
    """A running Hub that knows these tokens and what each may do."""
    hub = LocalHub(tokens=tokens)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

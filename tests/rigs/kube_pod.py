#!/usr/bin/env python3
"""Plays the kubelet against the API server of kube_apiserver.sh. Standard library only; also usable as a module (Pods).

    kube_pod.py DIR create NAME [--ip 10.0.0.1] [--label k=v]... [--annotation k=v]... [--port grpc=30001]...
                                [--not-ready]
    kube_pod.py DIR set NAME [--ip IP|none] [--ready true|false] [--phase Running] [--label k=v]...
                             [--annotation k=v]...
    kube_pod.py DIR restart NAME [--merged]   restartCount + 1 and a new container id, same uid and IP; Ready goes
                                              False then True, or with --merged only True to True, as when events are
                                              coalesced
    kube_pod.py DIR delete NAME [--grace 30]  deletionTimestamp; the pod stays, terminating, until "gone"
    kube_pod.py DIR gone NAME                 what the kubelet does at the end of termination: grace 0, DELETED at once
    kube_pod.py DIR hold NAME / release NAME  a finalizer, which keeps even a "gone" pod; release lets it go
    kube_pod.py DIR evict NAME                phase Failed, reason Evicted, no IP; the object stays
    kube_pod.py DIR token [--seconds 3600]    a real bound token of service account "frontend" into DIR/serviceaccount/
                                              {token,ca.crt,namespace}, swapped atomically through a symlink as a
                                              kubelet does
    kube_pod.py DIR list | watch [--rv N]

DIR is the folder given to kube_apiserver.sh start; --namespace default; "IP reuse" is evict or gone, then create --ip.
Pods carry spec.nodeName, so a delete waits for the kubelet, which is this script.
"""

import argparse
import json
import os
import pathlib
import shutil
import ssl
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class ApiError(Exception):
    pass


class Pods:
    def __init__(self, folder: str, namespace: str = "default"):
        self.folder, self.namespace = pathlib.Path(folder), namespace
        self.base = f"https://127.0.0.1:{(self.folder / 'port').read_text().strip()}"
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.tls = ssl.create_default_context(cafile=self.folder / "ca.crt")
        self.token = (self.folder / "admin.token").read_text().strip()

    def open(self, method: str, path: str, body=None, kind="application/json"):
        request = urllib.request.Request(
            self.base + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": kind},
        )
        try:
            return urllib.request.urlopen(request, context=self.tls)
        except urllib.error.HTTPError as error:
            raise ApiError(f"{method} {path}: {error.code} {json.load(error).get('message')}") from None

    def call(self, method: str, path: str, body=None, kind="application/json") -> dict:
        with self.open(method, path, body, kind) as answer:
            return json.load(answer)

    def _patch(self, path: str, body: dict) -> dict:
        return self.call("PATCH", self.pods + "/" + path, body, "application/strategic-merge-patch+json")

    @staticmethod
    def _container(restarts: int, ready: bool) -> dict:
        return {
            "name": "engine",
            "ready": ready,
            "started": ready,
            "restartCount": restarts,
            "image": "engine:1",
            "imageID": "engine@1",
            "containerID": f"containerd://{uuid.uuid4().hex}",
            "state": {"running": {"startedAt": now()}},
        }

    @staticmethod
    def _conditions(ready: bool) -> list[dict]:
        state = "True" if ready else "False"
        return [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Initialized", "status": "True"},
            {"type": "ContainersReady", "status": state, "lastTransitionTime": now()},
            {"type": "Ready", "status": state, "lastTransitionTime": now()},
        ]

    def get(self, name: str) -> dict:
        return self.call("GET", f"{self.pods}/{name}")

    def create(self, name, ip="10.0.0.1", labels=None, annotations=None, ports=None, ready=True) -> dict:
        container = {
            "name": "engine",
            "image": "engine:1",
            "ports": [{"name": n, "containerPort": p} for n, p in (ports or {}).items()],
        }
        self.call(
            "POST",
            self.pods,
            {
                "metadata": {"name": name, "labels": labels or {}, "annotations": annotations or {}},
                "spec": {"nodeName": "node-1", "containers": [container]},
            },
        )
        return self.set(name, ip=ip, ready=ready, phase="Running", container=self._container(0, ready))

    def set(self, name, ip=None, ready=None, phase=None, labels=None, annotations=None, container=None) -> dict:
        """A label of None removes it; ip "none" clears it."""
        pod = None
        if labels or annotations:
            pod = self._patch(name, {"metadata": {"labels": labels or {}, "annotations": annotations or {}}})
        status = {}
        if ip == "none":
            status |= {"podIP": None, "podIPs": [{"$patch": "replace"}]}
        elif ip:
            status |= {"podIP": ip, "podIPs": [{"$patch": "replace"}, {"ip": ip}]}
        if ready is not None:
            status["conditions"] = self._conditions(ready)
            if container is None and (old := self.get(name)["status"].get("containerStatuses")):
                container = old[0] | {"ready": ready}
        if phase:
            status["phase"] = phase
        if container:
            status["containerStatuses"] = [container]
        return self._patch(f"{name}/status", {"status": status}) if status else pod

    def restart(self, name, merged=False) -> dict:
        count = self.get(name)["status"]["containerStatuses"][0]["restartCount"] + 1
        if not merged:
            self.set(name, ready=False, container=self._container(count, False))
        return self.set(name, ready=True, container=self._container(count, True))

    def delete(self, name, grace=30) -> dict:
        return self.call("DELETE", f"{self.pods}/{name}?gracePeriodSeconds={grace}")

    def gone(self, name) -> dict:
        return self.delete(name, 0)

    def hold(self, name) -> dict:
        return self.call(
            "PATCH",
            f"{self.pods}/{name}",
            {"metadata": {"finalizers": ["rig.test/hold"]}},
            "application/merge-patch+json",
        )

    def release(self, name) -> dict:
        return self.call(
            "PATCH", f"{self.pods}/{name}", {"metadata": {"finalizers": None}}, "application/merge-patch+json"
        )

    def evict(self, name) -> dict:
        self.set(name, ip="none", ready=False, phase="Failed")
        return self._patch(
            f"{name}/status", {"status": {"reason": "Evicted", "message": "The node was low on resource: memory."}}
        )

    def service_token(self, seconds=3600) -> pathlib.Path:
        made = self.call(
            "POST",
            f"/api/v1/namespaces/{self.namespace}/serviceaccounts/frontend/token",
            {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {"expirationSeconds": seconds}},
        )
        mount = self.folder / "serviceaccount"
        mount.mkdir(exist_ok=True)
        data = pathlib.Path(tempfile.mkdtemp(prefix="..", dir=mount))
        (data / "token").write_text(made["status"]["token"])
        (data / "ca.crt").write_bytes((self.folder / "ca.crt").read_bytes())
        (data / "namespace").write_text(self.namespace)
        old = mount / os.readlink(mount / "..data") if (mount / "..data").is_symlink() else None
        for link, target in (("..data", data.name), *((n, f"..data/{n}") for n in ("token", "ca.crt", "namespace"))):
            fresh = mount / (link + ".new")
            fresh.symlink_to(target)
            os.replace(fresh, mount / link)
        if old:
            shutil.rmtree(old)
        return mount


def line(pod: dict) -> str:
    meta, status = pod["metadata"], pod.get("status", {})
    ready = next((c["status"] for c in status.get("conditions", ()) if c["type"] == "Ready"), "-")
    restarts = [c["restartCount"] for c in status.get("containerStatuses", ())]
    return (
        f"{meta['name']} rv={meta['resourceVersion']} uid={meta['uid'][:8]} {status.get('phase')} ready={ready} "
        f"ip={status.get('podIP')} restarts={restarts} terminating={'deletionTimestamp' in meta} "
        f"labels={meta.get('labels', {})}"
    )


def pairs(items) -> dict:
    return dict(item.split("=", 1) for item in items or ())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("dir")
    add(
        "verb",
        choices=["create", "set", "restart", "delete", "gone", "hold", "release", "evict", "token", "list", "watch"],
    )
    add("name", nargs="?")
    add("--namespace", default="default")
    add("--ip")
    add("--label", action="append")
    add("--annotation", action="append")
    add("--port", action="append")
    add("--ready", choices=["true", "false"])
    add("--not-ready", action="store_true")
    add("--phase")
    add("--merged", action="store_true")
    add("--grace", type=int, default=30)
    add("--seconds", type=int, default=3600)
    add("--rv", default="")
    a = parser.parse_args()
    pods = Pods(a.dir, a.namespace)
    if a.verb == "token":
        print(pods.service_token(a.seconds))
        return
    if a.verb == "list":
        answer = pods.call("GET", pods.pods)
        print(f"list rv={answer['metadata']['resourceVersion']}", *map(line, answer["items"]), sep="\n")
        return
    if a.verb == "watch":
        with pods.open("GET", f"{pods.pods}?watch=1&allowWatchBookmarks=true&resourceVersion={a.rv}") as stream:
            for raw in stream:
                event = json.loads(raw)
                shown = (
                    line(event["object"])
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED")
                    else json.dumps(event["object"])
                )
                print(event["type"], shown, flush=True)
        return
    if not a.name:
        parser.error(f"{a.verb} needs a pod name")
    ready = None if a.ready is None else a.ready == "true"
    pod = {
        "create": lambda: pods.create(
            a.name,
            a.ip or "10.0.0.1",
            pairs(a.label),
            pairs(a.annotation),
            {k: int(v) for k, v in pairs(a.port).items()},
            not a.not_ready,
        ),
        "set": lambda: pods.set(a.name, a.ip, ready, a.phase, pairs(a.label), pairs(a.annotation)),
        "restart": lambda: pods.restart(a.name, a.merged),
        "delete": lambda: pods.delete(a.name, a.grace),
        "gone": lambda: pods.gone(a.name),
        "hold": lambda: pods.hold(a.name),
        "release": lambda: pods.release(a.name),
        "evict": lambda: pods.evict(a.name),
    }[a.verb]()
    print(line(pod) if pod and "uid" in pod.get("metadata", {}) else "ok")


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(0)
    except ApiError as error:
        sys.exit(str(error))

import json, os, signal, socket, sys
def main():
    call = json.loads(sys.stdin.buffer.read().decode("utf-8", "replace"))
    given = call.get("tool_input") or call
    if isinstance(given, str):
        try: given = json.loads(given)
        except ValueError: given = {"command": given}
    what = ""
    for key in "command cmd file_path notebook_path path url pattern query description prompt".split():
        value = given.get(key)
        if isinstance(value, list): value = " ".join(map(str, value))
        if isinstance(value, str) and value:
            what = value[:400]
            break
    label = ": ".join(v for v in (call.get("tool_name") or call.get("hook_event_name"), what) if isinstance(v, str) and v)
    phase = sys.argv[1] if len(sys.argv) > 1 else ""
    s = socket.socket(socket.AF_UNIX)
    s.connect("/run/coppice.sock")
    s.sendall((json.dumps({"op": "mark", "phase": phase, "label": label}) + "\n").encode())
    answer = b""
    while b"\n" not in answer and len(answer) < 65536:
        more = s.recv(4096)
        if not more: break
        answer += more
signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
signal.alarm(2)
try: main()
except BaseException: pass
os._exit(0)

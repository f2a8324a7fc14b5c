// Package httpapi is the daemon's HTTP interface: it turns requests into calls of an engine, results into JSON,
// errors into problem documents (RFC 9457), upgraded connections into exec streams, and commands and events into
// Server-Sent Events. Only the daemon imports it.
//
// Routes are operations of huma, a file for each group of them; the OpenAPI document is generated from them, and
// docs/openapi.json is its published version. Each needs a scope (see package auth), which one middleware checks:
// read if it changes nothing, operate if it does, admin as marked here, and none where stated. {name} stands for the
// name or ID of a sandbox.
//
//	GET    /healthz                           {"ok":true}; no token
//	GET    /readyz                            {"ready":true}, or 503; no token
//	GET    /metrics                           text for Prometheus
//	GET    /openapi.json, /docs               the document, and a page of it; no token
//	GET    /v1/status                         DaemonStatus
//	GET    /v1/ping                           nothing (204): the daemon answers
//	GET    /v1/probe                          ProbeReport
//	GET    /v1/events?sandbox=&after=         SandboxEvents ***
//	POST   /v1/df                             DiskUse *
//	POST   /v1/gc                             GCRequest, GCResult *; admin
//	POST   /v1/verify                         VerifyResult of the whole store *; admin
//	GET    /v1/sandboxes                      ListResult
//	POST   /v1/sandboxes                      CreateRequest, Sandbox * ** +
//	GET    /v1/sandboxes/{name}               StatusResult
//	DELETE /v1/sandboxes/{name}?force=true    RemoveResult
//	POST   /v1/sandboxes/{name}/start         StatusResult
//	POST   /v1/sandboxes/{name}/stop          StopResult
//	POST   /v1/sandboxes/{name}/pause         Sandbox
//	POST   /v1/sandboxes/{name}/resume        Sandbox
//	GET    /v1/sandboxes/{name}/events        SandboxEvents ***
//	POST   /v1/sandboxes/{name}/exec          Upgrade: coppice-frames; else ExecRequest, events of a command
//	POST   /v1/sandboxes/{name}/exec?pty=true ExecRequest, Session
//	POST   /v1/sandboxes/{name}/run           RunRequest, Run +
//	GET    /v1/sandboxes/{name}/execs         ExecsResult
//	GET    /v1/sandboxes/{name}/execs/{exec}/output?offset=&read_only=   events of a command
//	POST   /v1/sandboxes/{name}/execs/{exec}/stdin?eof=true    bytes, nothing (204)
//	POST   /v1/sandboxes/{name}/execs/{exec}/signal    Signal, nothing (204)
//	DELETE /v1/sandboxes/{name}/execs/{exec}  nothing (204): it is being ended
//	POST   /v1/sessions/{id}/attach           AttachRequest, AttachResult
//	GET    /v1/attach/{session}?token=        a WebSocket: bytes, and TerminalControl; the token alone is needed
//	GET    /v1/sandboxes/{name}/head          HeadResult
//	GET    /v1/sandboxes/{name}/log           LogResult; also GET snapshots
//	GET    /v1/sandboxes/{name}/branches      BranchesResult
//	GET    /v1/sandboxes/{name}/nodes/{ref}   ShowResult
//	DELETE /v1/sandboxes/{name}/nodes/{ref}   HeadResult
//	GET    /v1/sandboxes/{name}/diff          ?a= &b= &path= &stat=true &patch=true: DiffResult, or text/x-diff
//	POST   /v1/sandboxes/{name}/commit        CommitRequest, CommitResult +; also POST snapshots
//	POST   /v1/sandboxes/{name}/mark          MarkRequest, CommitResult
//	POST   /v1/sandboxes/{name}/checkout      CheckoutRequest, MoveResult
//	POST   /v1/sandboxes/{name}/undo          UndoRequest, MoveResult
//	POST   /v1/sandboxes/{name}/redo          RedoRequest, MoveResult
//	POST   /v1/sandboxes/{name}/fork          ForkRequest, ForkResult +
//	POST   /v1/sandboxes/{name}/tournament    TournamentRequest, TournamentResult * +
//	POST   /v1/sandboxes/{name}/git/propose   ProposeRequest, Proposed
//	GET    /v1/sandboxes/{name}/git/proposal  tar
//	POST   /v1/sandboxes/{name}/git/rebase    RebaseRequest, Rebased
//	POST   /v1/sandboxes/{name}/trial         TrialRequest, Trial
//	GET    /v1/sandboxes/{name}/tags          TagsResult
//	POST   /v1/sandboxes/{name}/tags          TagRequest, TagResult
//	DELETE /v1/sandboxes/{name}/tags/{tag}    nothing (204)
//	POST   /v1/sandboxes/{name}/verify        VerifyResult *
//	GET    /v1/sandboxes/{name}/git/diff      ?path= &stat=true: GitDiff
//	GET    /v1/sandboxes/{name}/git/patch     ?path=: text/x-diff
//	POST   /v1/sandboxes/{name}/git/apply     GitApplyRequest, GitApplied +; admin
//	GET    /v1/sandboxes/{name}/grants        GrantsResult
//	PUT    /v1/sandboxes/{name}/grants/{grant}    GrantSpec, Grant; admin
//	DELETE /v1/sandboxes/{name}/grants/{grant}    nothing (204); admin
//	GET    /v1/consents                       ConsentsResult; admin
//	POST   /v1/consents                       ConsentRequest, ConsentsResult; admin
//	DELETE /v1/consents/{digest}              nothing (204); admin
//	POST   /v1/sandboxes/{name}/socket        SocketResult
//	DELETE /v1/sandboxes/{name}/socket        nothing (204)
//
// Answers marked * are streams of wire.Event, one JSON object per line, if the client accepts application/x-ndjson;
// else only the result. The one marked ** also accepts multipart/form-data with a part "request" (JSON) followed by a
// part "tar" (the archive). Those marked *** are a JSON object per line, or Server-Sent Events if the client accepts
// text/event-stream. Those marked + accept an Idempotency-Key.
//
// The events of a command are started, stdout, stderr, dropped, and at last exit or error; the ID of each is the
// offset in the output after it, and as Last-Event-ID resumes the output there. The command waits for clients that
// read its output; it belongs to the sandbox, so it continues when they disconnect.
package httpapi

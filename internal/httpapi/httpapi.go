// Package httpapi is the daemon's HTTP interface: it turns requests into calls
// of an Engine and results into JSON, errors into problem documents (RFC 9457),
// and upgraded connections into exec streams. Only the daemon imports it; it
// imports client/wire, timeline, policy and fault.
//
//	GET    /v1/status                         DaemonStatus
//	GET    /v1/probe                          ProbeReport
//	POST   /v1/gc                             GCRequest, GCResult *
//	POST   /v1/verify                         VerifyResult of the whole store *
//	GET    /v1/sandboxes                      ListResult
//	POST   /v1/sandboxes                      CreateRequest, Sandbox * **
//	GET    /v1/sandboxes/{name}               StatusResult
//	DELETE /v1/sandboxes/{name}?force=true    RemoveResult
//	POST   /v1/sandboxes/{name}/stop          StopResult
//	POST   /v1/sandboxes/{name}/exec          Upgrade: coppice-frames
//	GET    /v1/sandboxes/{name}/head          HeadResult
//	GET    /v1/sandboxes/{name}/log           LogResult
//	GET    /v1/sandboxes/{name}/branches      BranchesResult
//	GET    /v1/sandboxes/{name}/nodes/{ref}   ShowResult
//	DELETE /v1/sandboxes/{name}/nodes/{ref}   HeadResult
//	GET    /v1/sandboxes/{name}/diff          ?a= &b= &path= &stat=true &patch=true: DiffResult, or text/x-diff
//	POST   /v1/sandboxes/{name}/commit        CommitRequest, CommitResult
//	POST   /v1/sandboxes/{name}/checkout      CheckoutRequest, MoveResult
//	POST   /v1/sandboxes/{name}/undo          UndoRequest, MoveResult
//	POST   /v1/sandboxes/{name}/redo          MoveResult
//	POST   /v1/sandboxes/{name}/fork          ForkRequest, ForkResult
//	GET    /v1/sandboxes/{name}/tags          TagsResult
//	POST   /v1/sandboxes/{name}/tags          TagRequest, TagResult
//	DELETE /v1/sandboxes/{name}/tags/{tag}    nothing (204)
//	POST   /v1/sandboxes/{name}/verify        VerifyResult *
//
// The answers marked * are streams of wire.Event, one JSON object a line, when
// the client accepts application/x-ndjson; else they are the result alone. The
// one marked ** also takes multipart/form-data with a part "request" (JSON) and
// then a part "tar" (the archive).
package httpapi

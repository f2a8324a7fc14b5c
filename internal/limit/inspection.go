package limit

// The bounds on a connection whose HTTP requests are inspected.
const (
	// HeadBytes and HeadFields bound the head of an HTTP/1 request, and HeadBytes that of an answer. Head2Bytes bounds
	// the head of an HTTP/2 request; while it waits, each of the Streams holds about twice as much.
	HeadBytes  = 64 << 10
	HeadFields = 256
	Head2Bytes = 32 << 10
	// TrailerBytes bounds the trailers of a request and of an answer.
	TrailerBytes = 8 << 10
	// ChunkLine is the maximum length of the line with a chunk's size.
	ChunkLine = 16

	// Streams is the maximum number of concurrent requests on an HTTP/2 connection, StreamBuffer the maximum size of
	// the buffered body of one, and StreamsBuffer that of all.
	Streams       = 64
	StreamBuffer  = 256 << 10
	StreamsBuffer = 1 << 20
	// FrameBytes is the maximum size of an HTTP/2 frame.
	FrameBytes = 16 << 10
	// UnansweredHeads is the maximum number of requests kept in case they are refused: more than Streams, since
	// net/http may have refused some and not yet reported it.
	UnansweredHeads = 1024
	// ToldPath is the maximum recorded length of a path, and ToldName that of a method and of an authority.
	ToldPath = 1 << 10
	ToldName = 256

	// Informational is the maximum number of informational responses passed on before an answer, and InformationalBytes
	// the maximum size of their heads.
	Informational      = 16
	InformationalBytes = 64 << 10

	// SecretBody is the maximum size of a request body that a secret may be put into, and SignedBody that of one whose
	// hash is signed for AWS. SignedChunk is the maximum size of a chunk that has a signature, and SignedLine that of the
	// line before it. HeldBodies is the maximum size of all that a gate holds of these at a time.
	SecretBody  = 1 << 20
	SignedBody  = 8 << 20
	SignedChunk = 1 << 20
	SignedLine  = 4 << 10
	HeldBodies  = 64 << 20

	// Certificates is the maximum number of cached certificates of the gate's authority; a wildcard may allow a sandbox
	// any number of names.
	Certificates = 256
)

// inspection returns the bounds on inspected requests.
func inspection() []Bound {
	const (
		here    = "internal/gate/inspect/"
		framing = here + "framing_test.go TestFraming"
		answers = here + "answer_test.go "
		bodies  = "internal/gate/bodies_linux_test.go "
		signs   = "internal/gate/sign_linux_test.go "
		refused = here + "refused2_test.go "
		ended   = "the connection is closed, and denied"
		told    = "the answer becomes a 502, and is denied"
	)
	return []Bound{
		{"the head of an HTTP/1 request", HeadBytes, "bytes", ended, framing},
		{"headers of an HTTP/1 request", HeadFields, "headers", ended, framing},
		{"trailers of an HTTP/1 request", TrailerBytes, "bytes", ended, framing},
		{"the line with the size of a chunk", ChunkLine, "bytes", ended, framing},
		{"the head of an HTTP/2 request", Head2Bytes, "bytes", "431, or the connection is closed; denied",
			refused + "TestHTTP2_RecordsRefusalsOfNetHTTP"},
		{"HTTP/2 requests at a time, on one connection", Streams, "requests", "further ones are refused, and denied",
			refused + "TestHTTP2_RecordsStreamsBeyondTheBound"},
		{"an HTTP/2 frame", FrameBytes, "bytes", ended, refused + "TestHTTP2_RecordsRefusalsOfNetHTTP"},
		{"buffered body of an HTTP/2 request", StreamBuffer, "bytes", "further data is refused, and denied",
			refused + "TestHTTP2_BoundsBodyBuffer"},
		{"buffered bodies of all requests of an HTTP/2 connection", StreamsBuffer, "bytes",
			"further data is refused, and denied", refused + "TestHTTP2_BoundsAllBodyBuffers"},
		{"HTTP/2 requests without an answer, including refused ones", UnansweredHeads, "requests", ended,
			refused + "TestHTTP2_BoundsUnansweredHeads"},
		{"the path of such a request in a record", ToldPath, "bytes", "it is truncated",
			refused + "TestHTTP2_TruncatesRecordedPath"},
		{"a request body that a secret may be put into", SecretBody, "bytes", "the request is refused, and denied",
			bodies + "TestGrants_RefuseBodies"},
		{"a request body whose hash is signed for AWS", SignedBody, "bytes", "the request is refused, and denied",
			signs + "TestGrants_SignOnlyWhatTheyAllow"},
		{"a chunk of a body that is signed for AWS", SignedChunk, "bytes", "the request is refused, and denied",
			signs + "TestGrants_SignChunks"},
		{"the line before such a chunk, and a trailer", SignedLine, "bytes", "the request is refused, and denied",
			"internal/gate/sigv4/s3_test.go TestChunks_RefuseOthers"},
		{"request bodies that are held for their secrets", HeldBodies, "bytes", "further requests are refused, and denied",
			bodies + "TestGrants_BoundHeldBodies"},
		{"informational responses before an answer", Informational, "responses", told,
			answers + "TestAnswer_BoundsInformationalResponses"},
		{"heads of informational responses", InformationalBytes, "bytes", told,
			answers + "TestAnswer_BoundsTheHeadersOfInformationalResponses"},
		{"the head of an answer", HeadBytes, "bytes", "the connection is closed", answers + "TestAnswer_BoundsItsHead"},
		{"the trailers of an answer", TrailerBytes, "bytes", "the answer is truncated, and denied",
			answers + "TestAnswer_BoundsTrailers"},
		{"cached certificates of the gate's authority", Certificates, "certificates", "older ones are issued again",
			here + "serve_test.go TestAuthority"},
	}
}

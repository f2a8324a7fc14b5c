package limit

// The bounds on a connection whose HTTP requests are inspected.
const (
	// HeadBytes and HeadFields bound the head of an HTTP/1 request, and HeadBytes that of an
	// answer. Head2Bytes bounds the head of an HTTP/2 request, which is held about twice for
	// each of the Streams while it waits.
	HeadBytes  = 64 << 10
	HeadFields = 256
	Head2Bytes = 32 << 10
	// TrailerBytes bounds the trailers of a request and of an answer.
	TrailerBytes = 8 << 10
	// ChunkLine is the longest line with a chunk's size.
	ChunkLine = 16

	// Streams is how many requests there may be at a time on a connection of HTTP/2,
	// StreamBuffer and StreamsBuffer how much of the body of one, and of all, is held.
	Streams       = 64
	StreamBuffer  = 256 << 10
	StreamsBuffer = 1 << 20
	// FrameBytes is the longest frame of HTTP/2.
	FrameBytes = 16 << 10
	// UnansweredHeads is how many requests are kept to be recorded as refused: more than
	// Streams, since net/http may have refused some and not yet reported it.
	UnansweredHeads = 1024
	// ToldPath and ToldName are how much of the path of one, and of its method and its
	// authority, is kept.
	ToldPath = 1 << 10
	ToldName = 256

	// Informational is how many informational responses are passed on before an answer,
	// and InformationalBytes how many bytes their heads have.
	Informational      = 16
	InformationalBytes = 64 << 10

	// Certificates is how many certificates of the gate's authority are kept; a sandbox may
	// be allowed any number of names by a wildcard.
	Certificates = 256
)

// inspection returns the bounds on inspected requests.
func inspection() []Bound {
	const (
		here    = "internal/gate/inspect/"
		framing = here + "framing_test.go TestFraming"
		answers = here + "answer_test.go "
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

package limit

// The bounds on what a gate holds of one sandbox: connections, datagrams, names and events. They are per gate unless
// noted otherwise.
const (
	// GateConns is the maximum number of TCP connections, GateOpening of those in the handshake, and GateInspected of
	// those whose requests are inspected: each of these may hold hundreds of times as much memory as another. GateLogins
	// is that of those over SSH that the gate ends, with windows of megabytes in both directions.
	GateConns     = 512
	GateOpening   = 128
	GateInspected = 128
	GateLogins    = 32
	// GateFlows is the maximum number of UDP flows.
	GateFlows = 128
	// GateDials is the maximum number of connections and flows dialled per second, with bursts of twice as many: the
	// host has few ports.
	GateDials = 200
	// GateIdleSeconds and GateDatagramIdleSeconds are the idle timeouts of a connection and of a UDP flow.
	GateIdleSeconds         = 3600
	GateDatagramIdleSeconds = 60
	// GateDialSeconds is the timeout for dialling a host, and GateHelloSeconds for a ClientHello, a handshake, or the
	// rest of a request's head.
	GateDialSeconds  = 15
	GateHelloSeconds = 15

	// GateAskSeconds is the timeout of a pending request. It ends before resolvers give up or retry, at multiples of 30
	// s: a query repeated just as its request ends would start another request, whose answer would come too late.
	GateAskSeconds = 55
	// GateQuestions is the maximum number of pending requests, and GateWaiting that of the queries and connections that
	// wait for them; less than GateOpening.
	GateQuestions = 16
	GateWaiting   = 64

	// FlowBuffer is the buffer size of a connection in each direction: the first FlowBuffers connections have what a
	// fast link needs, others FlowSmallBuffer.
	FlowBuffer      = 2 << 20
	FlowBuffers     = 16
	FlowSmallBuffer = 128 << 10
	// Datagram is the maximum size of a datagram.
	Datagram = 64 << 10
	// LinkWaiting is the maximum size of packets queued for the sandbox, including the stack's overhead. LinkQueue is
	// the queue limit of a link's socket, if the kernel allows it.
	LinkWaiting = 4 << 20
	LinkQueue   = 4 << 20

	// EntranceStreams and EntranceFlows are the maximum numbers of TCP and UDP connections of a locked workspace, with
	// those that are being opened: more than its gate admits, so that the gate records a denial. EntranceHeaders is the
	// maximum number of those whose header has not arrived, which must within EntranceHeaderSeconds.
	EntranceStreams       = GateConns + GateOpening
	EntranceFlows         = 2 * GateFlows
	EntranceHeaders       = 256
	EntranceHeaderSeconds = 1

	// DNSQuery is the maximum size of a query: one name and an OPT record. A longer one would only serve as a tunnel.
	// DNSDatagram is the maximum size of a reply in a datagram, whatever the query allows (DNS flag day 2020), and
	// DNSAnswers the maximum number of its addresses.
	DNSQuery    = 512
	DNSDatagram = 1232
	DNSAnswers  = 32
	// DNSQueries is the maximum number of concurrent queries, and DNSStream that of queries over one TCP connection.
	DNSQueries = 64
	DNSStream  = 100
	// DNSLookups is the maximum number of lookups per second after the first DNSLookupBurst, since names can carry
	// data. The timeout of each is DNSLookupSeconds.
	DNSLookups       = 20
	DNSLookupBurst   = 200
	DNSLookupSeconds = 10

	// Pins is the maximum number of remembered pairs of name and address, PinAddrs that of the addresses of a name, and
	// PinNames that of the names of an address: each connection requires a decision about each of those.
	Pins     = 16384
	PinAddrs = 64
	PinNames = 256

	// HelloBytes is the maximum size of a ClientHello. With post-quantum keys they have less than 2 KiB; 16 KiB leaves
	// room for tickets. HelloWire is the maximum size on the wire until it is complete: a client may use a record for
	// every few bytes, but not one for each byte of a long ClientHello.
	HelloBytes = 16 << 10
	HelloWire  = 4 * HelloBytes

	// JournalEvents is the maximum number of queued events, and JournalDenials that of the denials counted at a time.
	JournalEvents  = 1024
	JournalDenials = 512
	// EventText is the maximum size of a method, a path or an invalid name in an event, before unprintable characters
	// are escaped: that of the longest name as text, without its trailing dot (RFC 1035, 3.1: 255 bytes on the wire).
	EventText = 253
)

// gate returns the bounds on what the gate reads, holds and relays.
func gate() area {
	const (
		here     = "internal/gate/"
		defaults = here + "bounds_linux_test.go "
		conns    = here + "tcp_linux_test.go TestTCP_BoundsConnectionsAndBytes" + lowered
		flows    = here + "life_linux_test.go TestDatagrams_PassByRuleOnly" + lowered
		asks     = here + "ask_test.go TestPendingRequests_AreBounded" + lowered
		pins     = here + "pins_test.go TestPins_AreBounded"
		hellos   = here + "hello_test.go TestHello_RefusesInvalid"
		journal  = here + "events_test.go TestJournal_IsBounded"
		names    = here + "names_test.go "
		entrance = here + "entrance/entrance_linux_test.go "
		denied   = "further ones are denied"
	)
	return area{title: "Network", bounds: append([]Bound{
		{"TCP connections", GateConns, "connections", denied, conns},
		{"TCP connections whose requests are inspected", GateInspected, "connections", denied,
			here + "inspect_linux_test.go TestInspection_BoundsConnections" + lowered},
		{"TCP connections over SSH that use grants", GateLogins, "connections", denied,
			here + "ssh_linux_test.go TestGrants_SSHIsBounded" + lowered},
		{"TCP connections that are being opened", GateOpening, "connections",
			"further ones are dropped; the sandbox's kernel tries again", defaults + "TestOpening_IsBounded" + lowered},
		{"flows of datagrams", GateFlows, "flows", denied, flows},
		{"connections and flows dialled in a second, and twice as many in a burst", GateDials, "dials", "further ones wait",
			defaults + "TestDials_AreRateLimited" + lowered},
		{"idle time of a connection", GateIdleSeconds, "seconds", "it is closed", conns},
		{"idle time of a flow of datagrams", GateDatagramIdleSeconds, "seconds", "it is closed", flows},
		{"time to dial a host", GateDialSeconds, "seconds", "the connection is refused",
			defaults + "TestDial_TimesOut" + lowered},
		{"time for a ClientHello, a handshake, or the head of a request", GateHelloSeconds, "seconds",
			"the connection is closed", here + "inspect/patience_test.go TestServe_TimesOut"},
		{"time for which a destination waits for a decision", GateAskSeconds, "seconds", "it is denied",
			here + "ask_linux_test.go TestPendingRequest_TimesOut"},
		{"destinations that wait for a decision", GateQuestions, "places", denied, asks},
		{"queries and connections that wait for a decision", GateWaiting, "entries", denied, asks},
		{"packets queued for the sandbox", LinkWaiting, "bytes", "further ones are dropped",
			here + "pipe/pipe_linux_test.go TestPipe_DropsForSlowReader"},
		{"bytes queued in a socket of a link", LinkQueue, "bytes",
			"further packets are dropped, and a `lost` record counts them, except in tier `gvisor`",
			here + "link/pair_linux_test.go TestPair_QueuesUpToLimit"},
		{"TCP connections of a locked workspace", EntranceStreams, "connections", "further ones are refused",
			entrance + "TestConnections_AreBounded"},
		{"UDP sockets of a locked workspace", EntranceFlows, "sockets", "further ones are refused",
			entrance + "TestConnections_AreBounded"},
		{"connections of a locked workspace whose header has not arrived", EntranceHeaders, "connections",
			"further ones are refused", entrance + "TestHeaders_AreBounded"},
		{"time for the header of a connection of a locked workspace", EntranceHeaderSeconds, "seconds",
			"the connection is closed", entrance + "TestHeader_RefusesHostile"},
		{"a DNS query", DNSQuery, "bytes", "it is refused (FORMERR); over TCP, the connection is closed",
			here + "dns_test.go TestParseQuery_RefusesInvalid"},
		{"a DNS answer in a datagram", DNSDatagram, "bytes", "the answer has `TC` set, and the client asks again over TCP",
			names + "TestAnswer_BoundsAddresses"},
		{"addresses in a DNS answer", DNSAnswers, "addresses", "further ones are left out",
			names + "TestAnswer_BoundsAddresses"},
		{"DNS queries answered at a time", DNSQueries, "queries", "further ones are dropped; over TCP, denied",
			names + "TestQueries_AreBoundedAtOnce"},
		{"DNS queries over one TCP connection", DNSStream, "queries", "the connection is closed",
			defaults + "TestDNS_OverTCPIsBounded"},
		{"names resolved in a burst, and then 20 in a second", DNSLookupBurst, "names", "further ones are denied",
			here + "resolve_linux_test.go TestLookups_AreRateLimited"},
		{"time to resolve a name", DNSLookupSeconds, "seconds", "the answer is SERVFAIL",
			names + "TestLookup_TimesOut"},
		{"remembered pairs of a name and an address", Pins, "pairs", "the name is not answered", pins},
		{"remembered addresses of a name", PinAddrs, "addresses", "the oldest are forgotten", pins},
		{"remembered names of an address", PinNames, "names", "the name is not answered", pins},
		{"a ClientHello", HelloBytes, "bytes", "the connection is denied", hellos},
		{"records of a ClientHello", HelloWire, "bytes", "the connection is denied", hellos},
		{"events queued to be reported", JournalEvents, "events", "accesses that cannot be reported are denied", journal},
		{"distinct denials that are counted at a time", JournalDenials, "denials",
			"further ones are counted together", journal},
		{"a method, a path or a name in an event", EventText, "bytes", "it is truncated",
			names + "TestPrintable_TruncatesLongText"},
	}, inspection()...)}
}

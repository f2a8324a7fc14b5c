package limit

// gate are the bounds on what the gate reads and relays.
func gate() area {
	return area{title: "Network", bounds: []Bound{}}
}

const (
	Informational      = 16
	InformationalBytes = 64 << 10
	TrailerBytes       = 8 << 10
	HeadBytes          = 64 << 10
	Head2Bytes         = 32 << 10
	Streams            = 64
	FrameBytes         = 16 << 10
	UnansweredHeads    = 1024
	ToldName           = 256
	ToldPath           = 1 << 10
)

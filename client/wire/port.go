package wire

import "time"

// Port is a TCP port that a process of a sandbox listens on.
type Port struct {
	Port    int    `json:"port"`              // port number
	Address string `json:"address"`           // address it listens on: 0.0.0.0 and :: are all
	PID     int    `json:"pid,omitempty"`     // ID of a listening process; 0 if unknown
	Program string `json:"program,omitempty"` // name of that process
}

// PortsResult lists the ports of a sandbox.
type PortsResult struct {
	Ports []Port `json:"ports"`          // by number
	More  int    `json:"more,omitempty"` // number of omitted ports
}

// PreviewRequest asks for a link to a port.
type PreviewRequest struct {
	// lifetime of the link, between a second and a week; 0 is an hour
	TTLMS int64 `json:"ttl_ms,omitempty"`
}

// PreviewResult is a link to a port. The link gives access to the port until it expires.
type PreviewResult struct {
	URL     string    `json:"url"`     // the link
	Expires time.Time `json:"expires"` // when it expires
}

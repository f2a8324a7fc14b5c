package wire

// LifeRequest changes how long a sandbox lives and runs, and its labels. What is left out stays; a
// time of 0 is for ever.
type LifeRequest struct {
	// so long from now it is removed, or, when it has tags, cut back to what they name; 0 is never
	TTLMS      *int64 `json:"ttl_ms,omitempty"`
	IdleStopMS *int64 `json:"idle_stop_ms,omitempty"` // idle time after which its processes are stopped; 0 is never

	Labels       map[string]string `json:"labels,omitempty"`        // labels to add or replace
	RemoveLabels []string          `json:"remove_labels,omitempty"` // keys of labels to remove first
}

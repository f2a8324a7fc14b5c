package wire

import "time"

// Consent is the owner's consent to a grant that the policy file of a project requests: sandboxes that are created with
// that file have the grant.
type Consent struct {
	Digest string    `json:"digest"`       // of the request and the project's directory: another request has another one
	Root   string    `json:"root"`         // directory of the project's file
	Grant  string    `json:"grant"`        // name of the grant
	Secret string    `json:"secret"`       // name of the secret
	Hosts  []string  `json:"hosts"`        // hosts that requests may carry it to
	Given  time.Time `json:"given"`        // when it was given
	By     string    `json:"by,omitempty"` // who consented, as known to the daemon
}

// ConsentsResult lists consents, by directory and name.
type ConsentsResult struct {
	Consents []Consent `json:"consents"` // by directory and name
}

// ConsentRequest consents to grants that a project's policy file requests.
type ConsentRequest struct {
	Policy []PolicyFile `json:"policy"` // as for a new sandbox: the project's file, and the user's, if there is one
	// the requests to consent to; the files must contain each of them
	Digests []string `json:"digests"`
}

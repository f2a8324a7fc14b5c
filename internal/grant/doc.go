// Package grant decides which requests of a sandbox carry a secret that the sandbox does not have. A grant names a
// secret, the requests that may carry it, and the sites of a request where it stands, such as a header. In its place
// the sandbox has a placeholder: a text of the same length and shape, which authorizes nothing.
//
// The package is pure: it does no I/O, reads no clock, and starts no goroutine. It never holds the value of a secret,
// except as the argument of KindOf, of which only the Shape remains. All that a request contains is hostile, and what
// is ambiguous is refused.
//
// Item is a grant as policies and the command line write it; Item.Grant checks it. NewSet combines the grants of a
// sandbox, and Set.Decide rules about each request. The commands, the policy and the engine will import it for Item,
// Grant and Placeholder, the broker of secrets for KindOf and Shape, and the gate for Set.
package grant

// Package escape is a corpus of attackers: programs that run as commands of a sandbox and try to see, reach,
// change or break something outside it. One table serves every tier; the tests of this package run it.
//
// An attack is a function that returns nil if it SUCCEEDED, and otherwise the error that refused it. An error alone
// proves little, so the harness also checks from outside that what it planted was neither read nor changed.
//
// Only tests import it; it imports no package of Coppice.
package escape

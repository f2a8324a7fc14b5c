// Package escape is a corpus of attackers: programs that run as commands of a
// sandbox and try to see, reach, change or break something outside it. One table
// serves every tier; the tests of this package run it.
//
// An attack is a function that gives nil when it SUCCEEDED, and else what refused
// it. That it gives an error proves little by itself, so the harness also checks
// from outside that what it planted was neither read nor changed.
//
// It is imported by tests alone; it imports none of ours.
package escape

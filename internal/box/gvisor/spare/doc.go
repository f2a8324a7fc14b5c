// Package spare keeps gVisor's packages from being initialised in processes that are none
// of gVisor's. Every command, keeper and init is the same binary, and would do for nothing
// what takes longer than all else that it does before it begins.
//
// The order cannot do it. The linker initialises packages in the order of their paths, each
// after what it imports (https://go.dev/ref/spec#Program_initialization), and "gvisor.dev"
// comes before "net", "os" and "runtime/debug". So this package, which imports os alone and
// is initialised as soon as that is, marks as done the initialisation of each package that
// gVisor alone uses (runtime/proc.go: initTask). That word belongs to the runtime: for a
// version of Go that nobody has looked at yet, nothing is marked, and all is slower and the
// same (tasks_other.go).
//
// What is marked is used by nobody: the list (tasks.go) holds what the binary would not have
// but for package gvisor, and a test compares it with the graph of imports.
//
// Package gvisor imports it; it imports nothing of ours.
package spare

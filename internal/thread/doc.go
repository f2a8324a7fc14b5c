// Package thread runs functions on separate threads, for state that Linux keeps per thread: credentials, namespaces,
// working directories.
package thread

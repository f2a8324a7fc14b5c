// Package thread runs functions on separate threads, for what Linux keeps for each thread:
// credentials, namespaces, working directories.
package thread

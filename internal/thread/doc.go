// Package thread runs functions on threads of their own, for what Linux keeps for each thread:
// credentials, namespaces, working directories.
package thread

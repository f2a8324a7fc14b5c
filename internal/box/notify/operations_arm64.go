//go:build linux

package notify

var operations = operationsAt

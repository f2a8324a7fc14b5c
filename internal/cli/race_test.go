//go:build linux && race

package cli_test

func init() { raced = true }

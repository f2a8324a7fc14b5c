//go:build linux && race

package engine

func init() { raced = true }

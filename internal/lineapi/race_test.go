//go:build race

package lineapi

func init() { raced = true }

//go:build race

package racetest

// Enabled says that this is a build with -race.
const Enabled = true

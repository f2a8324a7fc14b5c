//go:build !race

package memory

// raceDetector says that this is a build with -race.
const raceDetector = false

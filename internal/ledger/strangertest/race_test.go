//go:build race

package strangertest

// raceDetector says that this is a build with -race.
const raceDetector = true

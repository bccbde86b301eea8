package setup

import ()

// StartTitle names the step that starts a service.
func StartTitle(service string) string { return "start " + service }

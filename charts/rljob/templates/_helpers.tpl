{{- define "rljob.labels" -}}
app.kubernetes.io/name: rljob-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "rljob.selector" -}}
app.kubernetes.io/name: rljob-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rljob.name" -}}
{{ printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "rljob.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "rljob.name" .) }}
{{- end }}

{{- define "rljob.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Labels of the namespaces that may scrape, as JSON; nothing: none may. */ -}}
{{- define "rljob.scrapeFrom" -}}
{{- if or .Values.monitoring.podMonitors.enabled (kindIs "map" .Values.monitoring.scrapeFrom) -}}
{{ .Values.monitoring.scrapeFrom | default dict | toJson }}
{{- end }}
{{- end }}

{{- /* What every container of ours may do: nothing that it does not need. */ -}}
{{- define "rljob.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

from .facts import ReportFacts as ReportFacts
from .facts import gather as gather
from .page import render as render
from .page import write_report as write_report

"""Kinds of documents: text, token ids, conversations, preference pairs, prompts; each with its
leaves.

============  ==============================================  ======================================
kind          a record has                                    becomes
============  ==============================================  ======================================
text          ``text``                                        ``[bos] ids [eos]``
tokens        ``input_ids`` (and :data:`TOKEN_MASKS`,         the ids as they are, checked against
              ``attention_mask``, ``position_ids``, ...)      the vocabulary, no padding; a
                                                              ``loss_mask`` if there are masks
chat          ``messages``                                    the template's text, with a
                                                              ``loss_mask``
preference    ``chosen``, ``rejected`` (and ``prompt``)       two documents, the chosen one first,
                                                              with ``loss_mask``, ``prompt_length``
                                                              and ``chosen`` (1 or 0)
prompts       ``prompt``: a text or messages                  ``[bos] ids``, or the template's text
                                                              up to the answer
============  ==============================================  ======================================

The last three may have ``system`` and ``tools``, too, which go to the template. Texts of pairs and
prompts need none, and become turns of it if the field of one of these is named.

``loss_mask`` is uint8, one value per token: 1 if the token itself is trained on, which it is if any
of its characters is. Of messages that say ``weight: 0`` or the like, no token is. The prompt of a
preference pair is encoded separately from the answers, so its ids are the same in both documents,
and the same as for generation.

Price: masks need the position of each token in the text, which costs about as much again as the
encoding.
"""
